"""An output layer as the audit sees it, and the rank of its log-probabilities.

T contexts, V tokens, D hidden size, d size of what meets the output embedding, n rows of a block.
"""

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from highrank.analysis.log_probs import LogProbs, block_rows, head_log_probs, sampled
from highrank.analysis.rank import (
    RankBound,
    Spectrum,
    measure_ranks,
    noise_floor,
    rank_bound,
    unknown_reason,
)
from highrank.analysis.svd import (
    head_singular_values,
    linear_singular_values,
    peak_bytes,
    singular_values,
)
from highrank.analysis.unargmaxable.problem import Box, Everywhere, States
from highrank.heads import HEADS, Head, MixtureHead
from highrank.integrations.huggingface.output_layer import HeadOutputLayer, OutputLayer
from highrank.ops.logit_map import Softcap
from highrank.studies.audit.result import HeadFacts, RankAt, RankFacts

OnProgress = Callable[[float, str], None]

KINDS = {path.split(":")[1]: kind for kind, path in HEADS.items()}
# Rows of a block at least: the vocabulary's weights should not be read for a handful of contexts.
MIN_ROWS = 64
# Copies of the output embedding, in float64, that the linear method makes.
LINEAR_COPIES = 5
# Beyond so many singular values the stable method takes more than some ten minutes.
MAX_STABLE = 5_000
QUICK_TOKENS = 2_000
# A smaller sample of the tokens is not worth measuring.
MIN_TOKENS = 100


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """A layer whose most likely token is that of the greatest logit W h + b."""

    weight: Tensor
    """(V, E)."""
    bias: Tensor | None
    """(V,)."""
    states: States


@dataclass(frozen=True, kw_only=True)
class Layer:
    facts: HeadFacts
    bound: RankBound
    log_probs: Callable[[Tensor, torch.dtype], LogProbs]
    """Of hidden states (T, D), recomputed in a precision."""
    linear_spectra: Callable[..., tuple[Spectrum, ...]] | None
    """As `head_singular_values` with the head filled in; None if log p is not linear."""
    vectors: Vectors | None
    """None for a mixture of softmaxes, where the greatest logit decides nothing."""
    mixture: MixtureHead | None
    """The head itself if it has several components."""
    randomised: "Callable[[], Layer]"
    """Makes the same layer with random weights."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a spectrum is computed."""

    method: str
    num_tokens: int
    reason: str


def upgraded_layer(output: HeadOutputLayer, *, is_tied: bool, dtype: torch.dtype) -> Layer:
    """The head of an upgraded Hugging Face model, for hidden states that are scaled already.

    Args:
        dtype: in which its output embedding is stored.
    """
    layer = head_layer(copy.deepcopy(output.head).cpu(), is_tied=is_tied, hidden_bound=None)
    facts = replace(layer.facts, scale=output.scale, dtype=_name(dtype))
    return replace(layer, facts=facts)


def head_layer(head: Head, *, is_tied: bool, hidden_bound: float | None) -> Layer:
    """Any head of ours; of one that is no mixture only its log-probabilities are known.

    Args:
        hidden_bound: the largest absolute value of a number of a hidden state; None if unbounded.
    """
    if not isinstance(head, MixtureHead):
        return _other_layer(head, is_tied)
    has_map = head.logit_map is not None
    if not has_map and type(head).log_prob_from != MixtureHead.log_prob_from:
        return _other_layer(head, is_tied)
    num_softmaxes = head.softmaxes(head.weight.new_zeros(1, head.hidden_size)).context.shape[-2]
    is_linear, has_bias = num_softmaxes == 1 and not has_map, head.bias is not None
    context_bound = head.context_bound(hidden_bound)
    return Layer(
        facts=HeadFacts(
            kind=KINDS.get(type(head).__name__, type(head).__name__),
            vocab_size=head.vocab_size,
            context_size=head.embedding_size,
            num_components=head.num_components,
            has_bias=has_bias,
            softcap=head.logit_map.cap if isinstance(head.logit_map, Softcap) else None,
            scale=1.0,
            dtype=_name(head.weight.dtype),
            is_tied=is_tied,
        ),
        bound=_stated(
            head,
            rank_bound(
                head.embedding_size,
                has_bias=has_bias,
                num_softmaxes=num_softmaxes,
                has_map=has_map,
            ),
        ),
        log_probs=partial(head_log_probs, head),
        linear_spectra=partial(head_singular_values, head) if is_linear else None,
        vectors=Vectors(
            weight=head.weight.detach(),
            bias=None if head.bias is None else head.bias.detach(),
            states=Everywhere() if context_bound is None else Box(context_bound),
        )
        # A map of logits does not change which one is the greatest.
        if num_softmaxes == 1
        else None,
        mixture=head if head.num_components > 1 else None,
        randomised=lambda: head_layer(
            with_random_weights(head), is_tied=is_tied, hidden_bound=hidden_bound
        ),
    )


def _stated(head: Head, bound: RankBound) -> RankBound:
    """The bound that follows from the form, unless the head states another one."""
    if head.rank_bound == bound.value:
        return bound
    return RankBound(value=head.rank_bound, reason=f"{type(head).__name__} states it")


def _other_layer(head: Head, is_tied: bool) -> Layer:
    kind = KINDS.get(type(head).__name__, type(head).__name__)
    return Layer(
        facts=HeadFacts(
            kind=kind,
            vocab_size=head.vocab_size,
            context_size=_context_size(head),
            num_components=head.num_components,
            has_bias=getattr(head, "bias", None) is not None,
            softcap=None,
            scale=1.0,
            dtype=_name(next(head.parameters()).dtype),
            is_tied=is_tied,
        ),
        bound=RankBound(value=head.rank_bound, reason=f"{kind} states it"),
        log_probs=partial(head_log_probs, head),
        linear_spectra=None,
        vectors=None,
        mixture=None,
        randomised=lambda: _other_layer(with_random_weights(head), is_tied),
    )


def _context_size(head: Head) -> int:
    """E, as far as the head says."""
    weight = getattr(head, "weight", None)
    size: int = head.hidden_size if weight is None else weight.shape[1]
    return getattr(head, "embedding_size", size)


def hugging_face_layer(layer: OutputLayer) -> Layer:
    weight, bias = layer.weight.cpu(), None if layer.bias is None else layer.bias.cpu()
    layer = replace(layer, weight=weight, bias=bias)
    return Layer(
        facts=HeadFacts(
            kind="softmax",
            vocab_size=len(weight),
            context_size=weight.shape[1],
            num_components=1,
            has_bias=bias is not None,
            softcap=layer.softcap,
            scale=layer.scale,
            dtype=_name(weight.dtype),
            is_tied=layer.is_tied,
        ),
        bound=rank_bound(weight.shape[1], has_bias=bias is not None, softcap=layer.softcap),
        log_probs=partial(_layer_log_probs, layer),
        linear_spectra=partial(_layer_spectra, layer) if layer.softcap is None else None,
        # Neither a positive scale nor a softcap changes which logit is the greatest.
        vectors=Vectors(weight=weight, bias=bias, states=Everywhere()) if layer.scale > 0 else None,
        mixture=None,
        randomised=lambda: hugging_face_layer(
            replace(
                layer, weight=_normal(weight), bias=None if bias is None else _normal(bias, seed=1)
            )
        ),
    )


def with_random_weights(head: Head) -> Head:
    """A copy with random weights."""
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


def plan_spectrum(layer: Layer, num_contexts: int, quick: bool, budget: int) -> Plan:
    """What can be computed in `budget` bytes; decided before any work is done."""
    V, d = layer.facts.vocab_size, layer.facts.context_size
    linear_bytes = 8 * LINEAR_COPIES * (V + num_contexts) * (d + 2)
    if layer.linear_spectra is not None and linear_bytes <= budget:
        reason = "the head is linear, so that its factors have all singular values"
        return Plan(method="linear", num_tokens=V, reason=reason)
    tokens, reasons = V, []
    if quick and tokens > QUICK_TOKENS:
        tokens = QUICK_TOKENS
        reasons.append(f"{tokens:,} of {V:,} tokens were drawn, to be quick")
    if peak_bytes(num_contexts, tokens) > budget:
        tokens = _tokens_that_fit(num_contexts, tokens, budget)
        reasons = [f"{tokens:,} of {V:,} tokens were drawn, as memory for more is not free"]
    if min(num_contexts, tokens) > MAX_STABLE:
        reasons.append("the stable method would take very long")
        return Plan(method="fast", num_tokens=tokens, reason="; ".join(reasons))
    reasons = reasons or ["the whole matrix can be folded with full precision"]
    return Plan(method="stable", num_tokens=tokens, reason="; ".join(reasons))


def audit_rank(layer: Layer, hidden: Tensor, plan: Plan, on_progress: OnProgress) -> RankFacts:
    """Everything about the rank of log p of the contexts with hidden states (T, D)."""
    T, bound = len(hidden), layer.bound
    counts = sorted({max(1, T // part) for part in (8, 4, 2)})
    spectra = compute_spectra(layer, hidden, plan, counts, on_progress)
    growth = tuple(
        RankAt(num_contexts=spectrum.shape[0], measures=measure_ranks(spectrum))
        for spectrum in spectra
    )
    # Of equal limits the first is named: more contexts do not help against a bound.
    limits = {} if bound.value is None else {"bound": bound.value}
    limits |= {"tokens": plan.num_tokens, "contexts": T}
    ceiling_reason = min(limits, key=lambda name: limits[name])
    return RankFacts(
        num_contexts=T,
        num_tokens=plan.num_tokens,
        method=plan.method,
        method_reason=plan.reason,
        measures=growth[-1].measures,
        unknown=unknown_reason(spectra[-1]),
        bound=bound.value,
        bound_reason=bound.reason,
        ceiling=limits[ceiling_reason],
        ceiling_reason=ceiling_reason,
        largest=spectra[-1].values[0].item(),
        noise_floor=noise_floor(spectra[-1]),
        singular_values=tuple(spectra[-1].values.tolist()),
        growth=growth,
    )


def compute_spectra(
    layer: Layer, hidden: Tensor, plan: Plan, counts: Sequence[int], on_progress: OnProgress
) -> tuple[Spectrum, ...]:
    """Of the first contexts, as many as each of `counts`, and of all as the last."""
    if plan.method == "linear":
        assert layer.linear_spectra is not None
        return layer.linear_spectra(hidden, counts=counts, on_progress=on_progress)
    source = layer.log_probs(hidden, torch.float64)
    if plan.num_tokens < source.vocab_size:
        source = sampled(source, plan.num_tokens)
    return singular_values(source, plan.method, counts=counts, on_progress=on_progress)


def _tokens_that_fit(num_contexts: int, most: int, budget: int) -> int:
    """The most tokens of which the spectrum fits."""
    least = peak_bytes(num_contexts, MIN_TOKENS)
    if least > budget:
        raise ValueError(
            f"Out of memory: an audit needs at least {least / 2**20:,.0f} MB, and "
            f"{budget / 2**20:,.0f} MB may be used."
        )
    sizes = range(most)
    return bisect_right(sizes, budget, key=lambda tokens: peak_bytes(num_contexts, tokens)) - 1


def _layer_log_probs(layer: OutputLayer, hidden: Tensor, precision: torch.dtype) -> LogProbs:
    vocab_size = len(layer.weight)

    @torch.no_grad()
    def make_blocks() -> Iterator[Tensor]:
        for rows in hidden.split(max(MIN_ROWS, block_rows(vocab_size))):  # (n, D)
            yield layer.logits(rows.to(precision)).log_softmax(-1)  # (n, V)

    return LogProbs(
        num_contexts=len(hidden),
        vocab_size=vocab_size,
        precision=precision,
        make_blocks=make_blocks,
    )


def _layer_spectra(
    layer: OutputLayer,
    hidden: Tensor,
    *,
    counts: Sequence[int] = (),
    on_progress: OnProgress | None = None,
) -> tuple[Spectrum, ...]:
    bias = None if layer.bias is None else layer.bias.double() * layer.scale
    # The scale goes to the states: they are fewer than the tokens.
    context = hidden.double() * layer.scale
    return linear_singular_values(
        context, layer.weight, bias, counts=counts, on_progress=on_progress
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
