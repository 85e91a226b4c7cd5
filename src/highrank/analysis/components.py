"""What the components of a mixture do: how they are used, how they differ, what they say.

T contexts, K components, V words, D hidden size, n rows of a block. p(k|c) are the weights of a
context c, p(v|k,c) is the softmax of component k.

Have the components of a trained mixture parted, or do they all say the same?
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from highrank.analysis.log_probs import BLOCK_BYTES
from highrank.heads import MixtureHead, MixtureOfSoftmaxes
from highrank.models.language_model import LanguageModel

# A component is dead if its mean weight is below this share of 1/K.
DEAD_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class PreferredWord:
    word: int
    prob: float
    """p(v|k), over all contexts in which the component had a say."""
    share: float
    """p(k|v): how much of this word's probability is the component's."""


@dataclass(frozen=True, kw_only=True)
class Takeover:
    context: int
    """Row of the hidden states."""
    weight: float


@dataclass(frozen=True, kw_only=True)
class Component:
    mean_weight: float
    """p(k)."""
    largest_share: float
    """Share of the contexts in which it has the largest weight."""
    is_dead: bool
    """Its mean weight is below a hundredth of 1/K."""
    preferred: tuple[PreferredWord, ...]
    """By p(v|k) log(p(v|k) / p(v)), what a word adds to the component's divergence from all."""
    takeovers: tuple[Takeover, ...]
    """The contexts in which it has its largest weights."""


@dataclass(frozen=True, kw_only=True)
class ComponentReport:
    num_contexts: int
    weight_entropy: float
    """Mean over contexts of the entropy of the weights, in nats."""
    use_entropy: float
    """Entropy of the mean weights: log K if all are used alike."""
    specialisation: float
    """Mutual information of component and word, given the context, in nats: the mean over contexts
    of Σ_k p(k|c) KL(p(·|k,c) ‖ p(·|c)). Zero for components that all say the same."""
    pair_divergence: tuple[tuple[float, ...], ...]
    """(K, K): mean Jensen-Shannon divergence of two components, in nats, at most log 2."""
    num_pair_contexts: int
    """From how many contexts, evenly spaced, that mean is."""
    components: tuple[Component, ...]

    @property
    def dead(self) -> tuple[int, ...]:
        """The components that are dead."""
        return tuple(k for k, component in enumerate(self.components) if component.is_dead)


@torch.no_grad()
def component_report(
    head: MixtureHead,
    hidden: Tensor,
    *,
    num_words: int = 10,
    num_takeovers: int = 5,
    num_pair_contexts: int = 500,
    on_progress: Callable[[float, str], None] | None = None,
) -> ComponentReport:
    """Everything about the components of a mixture, in one pass over the contexts.

    Of a mixture of contexts it is what each context would say alone.

    Args:
        head: with at least two components; as in evaluation, without dropout.
        hidden: (T, D).
        num_words: how many preferred words of each component.
        num_takeovers: how many contexts of each component.
        num_pair_contexts: at most so many enter the divergences of pairs, which cost K² · V each.
    """
    K, V, T = head.num_components, head.vocab_size, len(hidden)
    if K < 2:
        raise ValueError(f"the head must have at least 2 components, got {K}")
    if hidden.dim() != 2 or hidden.numel() == 0:
        raise ValueError(f"hidden must be (T, D) and not empty, got {tuple(hidden.shape)}")
    if num_pair_contexts < 1:
        raise ValueError(f"num_pair_contexts must be at least 1, got {num_pair_contexts}")
    totals = _Totals(joint=hidden.new_zeros(K, V, dtype=torch.float64), weights=[])
    pairs = hidden.new_zeros(K, K, dtype=torch.float64)
    spacing, size = -(-T // num_pair_contexts), max(1, BLOCK_BYTES // (8 * K * V))
    twin = copy.deepcopy(head).eval()
    for start in range(0, T, size):
        log_weight, context = twin.mixture(hidden[start : start + size])
        prob = F.linear(context, twin.weight, twin.bias).double().softmax(-1)  # (n, K, V)
        pairs += pair_divergences(prob[-start % spacing :: spacing]).sum(0)
        totals.add(log_weight.double().exp(), prob)
        if on_progress is not None:
            on_progress(min(1.0, (start + size) / T), f"{min(start + size, T):,} contexts")
    num_pairs = len(range(0, T, spacing))
    weight = torch.cat(totals.weights)  # (T, K)
    return ComponentReport(
        num_contexts=T,
        weight_entropy=entropy(weight).mean().item(),
        use_entropy=entropy(weight.mean(0)).item(),
        specialisation=max(0.0, totals.specialisation / T),
        pair_divergence=tuple(tuple(row) for row in (pairs / num_pairs).tolist()),
        num_pair_contexts=num_pairs,
        components=_components(weight, totals.joint, num_words, num_takeovers),
    )


def entropy(prob: Tensor) -> Tensor:
    """-Σ p log p over the last dimension, in nats."""
    total: Tensor = torch.special.entr(prob).sum(-1)
    return total


def pair_divergences(prob: Tensor) -> Tensor:
    """Jensen-Shannon divergences (n, K, K) of the distributions (n, K, V)."""
    K = prob.shape[1]
    alone = entropy(prob)  # (n, K)
    out = prob.new_zeros(len(prob), K, K)
    for k in range(K):
        between = entropy((prob[:, k, None] + prob[:, k + 1 :]) / 2)  # (n, K - k - 1)
        divergence = between - (alone[:, k, None] + alone[:, k + 1 :]) / 2
        # Round-off of equal distributions is no divergence.
        out[:, k, k + 1 :] = out[:, k + 1 :, k] = divergence.clamp_min(0)
    return out


@dataclass(kw_only=True)
class _Totals:
    joint: Tensor
    """(K, V): Σ_c p(k,v|c)."""
    weights: list[Tensor]
    """(n, K) each."""
    specialisation: float = 0.0

    def add(self, weight: Tensor, prob: Tensor) -> None:
        """Contexts with weights (n, K) and softmaxes (n, K, V), which are overwritten."""
        inside = (weight * entropy(prob)).sum(1)  # (n,)
        said = prob.mul_(weight[..., None])  # (n, K, V)
        self.specialisation += (entropy(said.sum(1)) - inside).sum().item()
        self.joint += said.sum(0)
        self.weights.append(weight)


def _components(
    weight: Tensor, joint: Tensor, num_words: int, num_takeovers: int
) -> tuple[Component, ...]:
    T, K = weight.shape
    use = weight.mean(0).tolist()
    largest = torch.bincount(weight.argmax(1), minlength=K).tolist()
    return tuple(
        Component(
            mean_weight=use[k],
            largest_share=largest[k] / T,
            is_dead=use[k] < DEAD_SHARE / K,
            preferred=_preferred(joint, k, num_words),
            takeovers=_takeovers(weight[:, k], num_takeovers),
        )
        for k in range(K)
    )


def _preferred(joint: Tensor, k: int, count: int) -> tuple[PreferredWord, ...]:
    total = joint.sum(0)  # (V,)
    prob, prior = joint[k] / joint[k].sum(), total / total.sum()  # p(v|k), p(v)
    gain = torch.where(prob > 0, prob * (prob / prior).log(), 0.0)
    return tuple(
        PreferredWord(word=v, prob=prob[v].item(), share=(joint[k, v] / total[v]).item())
        for v in gain.topk(min(count, len(gain))).indices.tolist()
        if prob[v] > 0
    )


def _takeovers(weight: Tensor, count: int) -> tuple[Takeover, ...]:
    top = weight.topk(min(count, len(weight)))
    return tuple(
        Takeover(context=context, weight=value)
        for value, context in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    )


# Components that tell less about the word, in nats, say nearly the same.
ALIKE = 0.01
# What the noise of growth gives by itself is about 0.03.
PARTED = 0.1


@torch.no_grad()
def specialisation(
    model: LanguageModel, words: NDArray[np.integer], num_contexts: int = 500
) -> float | None:
    """What the speaking component tells about the next word, in nats: `ComponentReport` has more.

    None for a head that is no mixture of softmaxes.

    Args:
        model: in evaluation mode.
        words: (T,), a text; its first words are read.
    """
    if not isinstance(model.head, MixtureOfSoftmaxes) or model.head.num_components == 1:
        return None
    tokens = torch.from_numpy(words[:num_contexts].astype(np.int64))[:, None]  # (T, 1)
    tokens = tokens.to(model.head.weight.device)
    hidden = model.backbone(tokens, model.initial_state(1)).hidden  # (T, 1, D)
    return component_report(model.head, hidden[:, 0], num_pair_contexts=1).specialisation
