"""The output layer of a predictor as an audit sees it.

T contexts, V tokens, D hidden size, d size of what meets the output embedding.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.analysis.log_probs import LogProbs, head_log_probs
from highrank.analysis.rank import RankBound, Spectrum, rank_bound
from highrank.analysis.svd import head_singular_values, linear_singular_values
from highrank.analysis.unargmaxable.problem import Box, Everywhere, States
from highrank.heads import HEADS, Composed, Head, MixtureHead
from highrank.heads.linear import LinearHead
from highrank.ops.logit_map import Softcap
from highrank.predictor import Predictor
from highrank.progress import OnProgress

KINDS = {path.split(":")[1]: kind for kind, path in HEADS.items()} | {"LinearHead": "softmax"}
# Rows of a block at least: stored weights should not be converted for a handful of contexts.
MIN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    """The output layer by the model's files."""

    kind: str
    """As --head.kind takes it; "softmax" for a Hugging Face model as it comes."""
    vocab_size: int
    """V."""
    context_size: int
    """d."""
    num_components: int
    """K; 1 for a softmax."""
    has_bias: bool
    softcap: float | None
    """c, where logits are c · tanh(logits / c); None for most."""
    scale: float
    """Factor of the logits before any softcap; 1 for most."""
    dtype: str
    """Precision in which the output embedding is stored, as "float32"."""
    is_tied: bool
    """Whether the output embedding is the input embedding."""


class Vectors(NamedTuple):
    """A layer whose most likely token is that of the greatest logit W h + b."""

    weight: Tensor
    """(V, E)."""
    bias: Tensor | None
    """(V,)."""
    states: States


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A head with what is known about its form."""

    head: Head
    """The model's own."""
    scorer: Head
    """Predicts from the hidden states alone: the head, unless that looks back."""
    facts: HeadFacts
    hidden_bound: float | None
    """No number of a hidden state is larger in magnitude; None if unbounded."""

    @cached_property
    def num_softmaxes(self) -> int | None:
        """Softmaxes of logits W h + b, mapped or not, that are mixed; None for other heads."""
        head = self.head
        if isinstance(head, LinearHead):
            return 1
        if not isinstance(head, MixtureHead):
            return None
        if head.logit_map is None and type(head).log_prob_from != MixtureHead.log_prob_from:
            return None
        states = head.weight.new_zeros(1, head.hidden_size)
        return head.softmaxes(states).context.shape[-2]

    @property
    def is_linear(self) -> bool:
        """Whether log p is linear in the context, the normaliser and the bias."""
        return self.num_softmaxes == 1 and _logit_map(self.head) is None

    @property
    def bound(self) -> RankBound:
        """The bound that follows from the form, unless the head states another one."""
        facts, stated = self.facts, self.head.rank_bound
        if self.num_softmaxes is None:
            return RankBound(value=stated, reason=f"{facts.kind} states it")
        found = rank_bound(
            facts.context_size,
            has_bias=facts.has_bias,
            num_softmaxes=self.num_softmaxes,
            softcap=facts.softcap,
            has_map=_logit_map(self.head) is not None and facts.softcap is None,
        )
        if found.value == stated:
            return found
        return RankBound(value=stated, reason=f"{type(self.head).__name__} states it")

    @property
    def vectors(self) -> Vectors | None:
        """None for a mixture of softmaxes, where the greatest logit decides nothing."""
        head = self.head
        # Neither a positive scale nor a map of logits changes which one is the greatest.
        if self.num_softmaxes != 1 or not isinstance(head, LinearHead | MixtureHead):
            return None
        bound = head.context_bound(self.hidden_bound) if isinstance(head, MixtureHead) else None
        bias = None if head.bias is None else head.bias.detach()
        states = Everywhere() if bound is None else Box(bound)
        return Vectors(head.weight.detach(), bias, states)

    @property
    def mixture(self) -> MixtureHead | None:
        """The head itself if it has several components."""
        head = self.head
        if isinstance(head, MixtureHead) and self.num_softmaxes and head.num_components > 1:
            return head
        return None

    def log_probs(self, hidden: Tensor, precision: torch.dtype) -> LogProbs:
        """Log-probabilities of hidden states (T, D), recomputed in a precision."""
        rows = MIN_ROWS if isinstance(self.scorer, LinearHead) else 1
        return head_log_probs(self.scorer, hidden, precision, min_rows=rows)

    def linear_spectra(
        self, hidden: Tensor, *, counts: Sequence[int], on_progress: OnProgress
    ) -> tuple[Spectrum, ...]:
        """As `head_singular_values`; for a layer that is linear."""
        head = self.head
        if isinstance(head, MixtureHead):
            return head_singular_values(head, hidden, counts=counts, on_progress=on_progress)
        assert isinstance(head, LinearHead)
        bias = None if head.bias is None else head.bias.double() * head.scale
        # The scale goes to the states: they are fewer than the tokens.
        context = hidden.double() * head.scale
        return linear_singular_values(
            context, head.weight, bias, counts=counts, on_progress=on_progress
        )

    def randomised(self) -> "Layer":
        """The same layer with random weights. Where a head looks back, they meet its features."""
        scorer = with_random_weights(self.scorer)
        head = scorer if self.scorer is self.head else self.head
        return replace(self, head=head, scorer=scorer)


def layer_of(predictor: Predictor, scorer: Head | None = None) -> Layer:
    """A copy of the predictor's head, on the CPU.

    Args:
        scorer: what predicts in its place from hidden states alone, if it looks back.
    """
    head = copy.deepcopy(predictor.head).cpu()
    logit_map, weight = _logit_map(head), getattr(head, "weight", None)
    size: int = head.hidden_size if weight is None else weight.shape[1]
    facts = HeadFacts(
        kind=kind_of(head),
        vocab_size=head.vocab_size,
        context_size=getattr(head, "embedding_size", size),
        num_components=head.num_components,
        has_bias=getattr(head, "bias", None) is not None,
        softcap=logit_map.cap if isinstance(logit_map, Softcap) else None,
        scale=predictor.scale,
        dtype=str(predictor.dtype).removeprefix("torch."),
        is_tied=predictor.is_tied,
    )
    bound = predictor.hidden_bound
    return Layer(head=head, scorer=scorer or head, facts=facts, hidden_bound=bound)


def kind_of(head: Head) -> str:
    """A key of `HEADS`, +component for each further one; the class's name for other heads."""
    if isinstance(head, Composed):
        return "+".join((kind_of(head.base), *(one.name for one in head.parts)))
    return KINDS.get(type(head).__name__, type(head).__name__)


def _logit_map(head: Head) -> object | None:
    """The map that is applied to the logits of softmaxes."""
    return head.logit_map if isinstance(head, LinearHead | MixtureHead) else None


def with_random_weights(head: Head) -> Head:
    """A copy with random weights."""
    if isinstance(head, LinearHead):
        bias = None if head.bias is None else _normal(head.bias, seed=1)
        return LinearHead(_normal(head.weight), bias, scale=head.scale, softcap=head.softcap)
    twin = copy.deepcopy(head)
    for seed, parameter in enumerate(twin.parameters()):
        if parameter.numel():
            parameter.data = _normal(parameter.data, seed)
    return twin


def _normal(weight: Tensor, seed: int = 0) -> Tensor:
    """Normal numbers with the weight's shape, mean and standard deviation."""
    random = torch.Generator().manual_seed(seed)
    std, mean = torch.std_mean(weight, correction=0)
    return torch.empty_like(weight).normal_(mean.item(), std.item(), generator=random)
