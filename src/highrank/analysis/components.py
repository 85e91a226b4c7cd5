"""The components of a mixture: how much each is used, how they differ, what each predicts.

T contexts, K components, V tokens, D hidden size, n rows of a block. p(k|c) are the weights of a
context c, p(v|k,c) is the softmax of component k.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from highrank.analysis.log_probs import block_rows
from highrank.heads import AdaptiveMixtureOfSoftmaxes, MixtureHead
from highrank.models.language_model import LanguageModel
from highrank.ops.sharding import is_distributed

# A component is dead if its mean weight is below this fraction of 1/K.
DEAD_FRACTION = 0.01
# Nats of mutual information: below the first a mixture has collapsed, and from the second on its
# components have specialised. Growing a mixture by noise alone gives I(component; token) = 0.03,
# and weights that are the same in every context.
COLLAPSED, SPECIALISED = 0.01, 0.1
# Of each component.
NUM_PREFERRED, NUM_CONTEXTS = 10, 5


class MixtureState(StrEnum):
    """Whether the components of a mixture differ in what they predict."""

    COLLAPSED = "collapsed"
    WEAK = "weak"
    SPECIALISED = "specialised"


@dataclass(frozen=True, kw_only=True)
class PreferredToken:
    token: str
    prob: float
    """p(v|k), over all contexts by the component's weight in them."""
    responsibility: float
    """p(k|v): the component's fraction of this token's probability."""


@dataclass(frozen=True, kw_only=True)
class TopContext:
    text: str
    """The end of the context."""
    next_token: str
    """The token that follows it."""
    weight: float
    """The component's, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Component:
    mean_weight: float
    """p(k)."""
    largest_fraction: float
    """Fraction of the contexts in which it has the largest weight."""
    is_dead: bool
    """Its mean weight is below a hundredth of 1/K."""
    preferred: tuple[PreferredToken, ...]
    """By p(v|k) log(p(v|k) / p(v)), what a token adds to the component's divergence from all."""
    top_contexts: tuple[TopContext, ...]
    """The contexts in which its weight is largest, the largest first."""


@dataclass(frozen=True, kw_only=True)
class ComponentReport:
    num_contexts: int
    weight_entropy: float
    """Mean over contexts of the entropy of the weights, in nats: 0 if one component has all the
    weight, log K if all have the same."""
    use_entropy: float
    """Entropy of the mean weights, in nats: log K if all are used alike."""
    specialisation: float
    """Mutual information I(component; token) given the context, in nats: the mean over contexts of
    Σ_k p(k|c) KL(p(·|k,c) ‖ p(·|c)). 0 if all components predict the same."""
    gate_information: float
    """Mutual information I(component; context), in nats: the entropy of the mean weights minus the
    mean entropy of the weights. 0 if the weights are the same in every context."""
    state: MixtureState
    """By the rule of `mixture_state`."""
    state_reason: str
    """The reason for the state, in a clause."""
    pair_divergence: tuple[tuple[float, ...], ...]
    """(K, K): mean Jensen-Shannon divergence of two components, in nats, at most log 2."""
    num_pair_contexts: int
    """From how many contexts, evenly spaced, that mean is."""
    num_dead: int
    components: tuple[Component, ...]

    @property
    def state_text(self) -> str:
        """The state in words."""
        return "hardly specialised" if self.state is MixtureState.WEAK else str(self.state)

    @property
    def information(self) -> str:
        """The two numbers behind the state."""
        token, context = f"{self.specialisation:.3f}", f"{self.gate_information:.3f}"
        return f"I(component; token) = {token} nats, I(component; context) = {context} nats"


@torch.no_grad()
def component_report(
    head: MixtureHead,
    hidden: Tensor,
    *,
    token: Callable[[int], str] = str,
    context: Callable[[int], tuple[str, str]] = lambda row: (str(row), ""),
    num_pair_contexts: int = 500,
    on_progress: Callable[[float, str], None] | None = None,
) -> ComponentReport:
    """Everything about the components of a mixture, in one pass over the contexts.

    For a mixture of contexts, what each context would predict alone.

    Args:
        head: with at least two components; evaluated without dropout.
        hidden: (T, D).
        token: the text of a token.
        context: the end of the context with this row of `hidden`, and the token that follows.
        num_pair_contexts: at most so many enter the divergences of pairs, which cost K² · V each.
    """
    K, V, T = head.num_components, head.vocab_size, len(hidden)
    if K < 2:
        raise ValueError(f"the head must have at least 2 components, got {K}")
    if hidden.dim() != 2 or hidden.numel() == 0:
        raise ValueError(f"hidden must be (T, D) and not empty, got {tuple(hidden.shape)}")
    if num_pair_contexts < 1:
        raise ValueError(f"num_pair_contexts must be at least 1, got {num_pair_contexts}")
    totals = _Totals()
    pairs = hidden.new_zeros(K, K, dtype=torch.float64)
    spacing, size = -(-T // num_pair_contexts), block_rows(K * V)
    twin = copy.deepcopy(head).eval()
    for start in range(0, T, size):
        log_weight, contexts = twin.mixture(hidden[start : start + size])
        logits = F.linear(contexts, twin.weight, twin.bias).double()  # (n, K, V)
        if twin.logit_map is not None:
            logits = twin.logit_map(logits)
        prob = logits.softmax(-1)
        pairs += pair_divergences(prob[-start % spacing :: spacing]).sum(0)
        totals.add(log_weight.double().exp(), prob)
        if on_progress is not None:
            on_progress(min(1.0, (start + size) / T), f"{min(start + size, T):,} contexts")
    num_pairs = len(range(0, T, spacing))
    weight, joint = totals.weight, totals.joint  # (T, K), (K, V)
    assert isinstance(joint, Tensor)
    components = tuple(_component(weight, joint, k, token, context) for k in range(K))
    inside, use = entropy(weight).mean().item(), entropy(weight.mean(0)).item()
    gate = max(0.0, use - inside)
    state, reason = mixture_state(totals.specialisation, gate)
    return ComponentReport(
        num_contexts=T,
        weight_entropy=inside,
        use_entropy=use,
        specialisation=totals.specialisation,
        gate_information=gate,
        state=state,
        state_reason=reason,
        pair_divergence=tuple(tuple(row) for row in (pairs / num_pairs).tolist()),
        num_pair_contexts=num_pairs,
        num_dead=sum(component.is_dead for component in components),
        components=components,
    )


def mixture_state(specialisation: float, gate_information: float) -> tuple[MixtureState, str]:
    """Whether components have specialised or collapsed, and why: the rule of training and audit.

    Where I(component; token) is nearly 0, every prediction is that of one softmax: components are
    equal, or one of them has all the weight. As all share the output embedding, the mixture is then
    one softmax whatever its weights are. Where I(component; context) is nearly 0, the mixture is
    the same in every context and chooses nothing.
    """
    if specialisation < COLLAPSED:
        return MixtureState.COLLAPSED, "in each context the mixture predicts as one softmax does"
    if gate_information < COLLAPSED:
        return MixtureState.COLLAPSED, "the weights are nearly the same in every context"
    if specialisation < SPECIALISED:
        return MixtureState.WEAK, "components predict nearly the same tokens"
    return MixtureState.SPECIALISED, "components predict different tokens"


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


class _Totals:
    """Sums over contexts, of which the report is made."""

    def __init__(self) -> None:
        self.joint: Tensor | float = 0.0
        """(K, V): Σ_c p(k,v|c)."""
        self.weights: list[Tensor] = []
        """(n, K) each."""
        self.information = 0.0
        """Σ_c I(component; token)."""

    def add(self, weight: Tensor, prob: Tensor) -> None:
        """Contexts with weights (n, K) and softmaxes (n, K, V), which are overwritten."""
        inside = (weight * entropy(prob)).sum(1)  # (n,)
        joint = prob.mul_(weight[..., None])  # (n, K, V)
        self.information += (entropy(joint.sum(1)) - inside).sum().item()
        self.joint = self.joint + joint.sum(0)
        self.weights.append(weight)

    @property
    def weight(self) -> Tensor:
        """(T, K)."""
        return torch.cat(self.weights)

    @property
    def specialisation(self) -> float:
        return max(0.0, self.information / sum(map(len, self.weights)))


def _component(
    weight: Tensor,
    joint: Tensor,
    k: int,
    token: Callable[[int], str],
    context: Callable[[int], tuple[str, str]],
) -> Component:
    """Component k by the weights (T, K) and the joint probabilities (K, V)."""
    mean_weight = weight.mean(0)[k].item()
    top = weight[:, k].topk(min(NUM_CONTEXTS, len(weight)))
    return Component(
        mean_weight=mean_weight,
        largest_fraction=int((weight.argmax(1) == k).sum()) / len(weight),
        is_dead=mean_weight < DEAD_FRACTION / len(joint),
        preferred=_preferred(joint, k, token),
        top_contexts=tuple(
            TopContext(text=text, next_token=following, weight=value)
            for value, (text, following) in zip(
                top.values.tolist(), map(context, top.indices.tolist()), strict=True
            )
        ),
    )


def _preferred(joint: Tensor, k: int, token: Callable[[int], str]) -> tuple[PreferredToken, ...]:
    total = joint.sum(0)  # (V,)
    prob, prior = joint[k] / joint[k].sum(), total / total.sum()  # p(v|k), p(v)
    gain = torch.where(prob > 0, prob * (prob / prior).log(), 0.0)
    return tuple(
        PreferredToken(
            token=token(v), prob=prob[v].item(), responsibility=(joint[k, v] / total[v]).item()
        )
        for v in gain.topk(min(NUM_PREFERRED, len(gain))).indices.tolist()
        if prob[v] > 0
    )


@torch.no_grad()
def model_components(
    model: LanguageModel, tokens: NDArray[np.integer], num_contexts: int = 500
) -> ComponentReport | None:
    """The components of a model's head; None for a head that is no mixture of softmaxes.

    Neither is one whose vocabulary is spread over processes: none of them sees all logits.

    Args:
        model: in evaluation mode.
        tokens: (T,), of a split; the first `num_contexts` of them are read.
    """
    head = model.head
    # With a bound on its rank it mixes before the softmax, or mixes nothing.
    if not isinstance(head, MixtureHead) or head.num_components == 1 or head.rank_bound is not None:
        return None
    if is_distributed(head.weight):
        return None
    return component_report(head, _first_hidden(model, tokens, num_contexts), num_pair_contexts=1)


@dataclass(frozen=True, kw_only=True)
class MixtureUse:
    """Use of a mixture's components, in two numbers."""

    specialisation: float
    """I(component; next token), in nats, as `ComponentReport` has it."""
    effective_components: float
    """exp of the entropy of the mean weights: K if all are used alike."""


@torch.no_grad()
def mixture_use(
    model: LanguageModel, tokens: NDArray[np.integer], num_contexts: int = 500
) -> MixtureUse | None:
    """How the first contexts of a split use the components; None for a head without a mixture.

    For an adaptive mixture, what a mixture inside the first tail adds is left out.
    """
    head = model.head
    if not isinstance(head, AdaptiveMixtureOfSoftmaxes) or head.num_components == 1:
        report = model_components(model, tokens, num_contexts)
        if report is None:
            return None
        effective = math.exp(report.use_entropy)
        return MixtureUse(specialisation=report.specialisation, effective_components=effective)
    hidden, totals = _first_hidden(model, tokens, num_contexts), _Totals()
    for rows in hidden.split(block_rows(head.num_components * head.vocab_size)):
        log_weight, log_q = head.component_log_prob(rows)  # (n, K), (n, K, R + m)
        totals.add(log_weight.double().exp(), log_q.double().exp())
    effective = entropy(totals.weight.mean(0)).exp().item()
    return MixtureUse(specialisation=totals.specialisation, effective_components=effective)


def _first_hidden(model: LanguageModel, tokens: NDArray[np.integer], num_contexts: int) -> Tensor:
    """Input of the head at the first tokens of a split, (T, D)."""
    first = torch.from_numpy(tokens[:num_contexts].astype(np.int64))[:, None]  # (T, 1)
    first = first.to(next(model.parameters()).device)
    return model.read(first, model.initial_state(1)).hidden[:, 0]
