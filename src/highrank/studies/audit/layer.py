"""An output layer as the audit sees it, be it a head of ours or that of a Hugging Face model.

T contexts, V words, D hidden size, n rows of a block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from highrank.analysis.log_probs import LogProbs, block_rows, head_log_probs
from highrank.analysis.rank import RankBound, Spectrum, rank_bound
from highrank.analysis.svd import head_singular_values, linear_singular_values
from highrank.analysis.unargmaxable.states import Box, Everywhere, States
from highrank.heads import MixtureHead, MixtureOfContexts, Softmax
from highrank.integrations.huggingface import OutputLayer
from highrank.studies.audit.result import HeadFacts

# Rows of a block at least: a vocabulary's weights should not be read for a handful of contexts.
MIN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """The words of a layer whose most likely word is that of the greatest logit W h + b."""

    weight: Tensor
    """(V, E)."""
    bias: Tensor | None
    """(V,)."""
    states: States
    description: str
    """Of the states, in words."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    facts: HeadFacts
    bound: RankBound
    log_probs: Callable[[Tensor, torch.dtype], LogProbs]
    """Of hidden states (T, D), recomputed in a precision."""
    linear_spectra: Callable[..., tuple[Spectrum, ...]] | None
    """As `head_singular_values` with the head filled in; None if log p is not linear."""
    vectors: Vectors | None
    """None for a mixture of softmaxes: there the greatest logit decides nothing."""
    mixture: MixtureHead | None
    """The head itself if it has several components."""


def head_layer(head: MixtureHead, is_tied: bool) -> Layer:
    """A head of ours, behind an LSTM: all its states are between -1 and 1."""
    kind = (
        "softmax"
        if isinstance(head, Softmax)
        else "moc"
        if isinstance(head, MixtureOfContexts)
        else "mos"
    )
    is_linear = head.rank_bound is not None
    return Layer(
        facts=HeadFacts(
            kind=kind,
            vocab_size=head.vocab_size,
            context_size=head.embedding_size,
            num_components=head.num_components,
            has_bias=head.bias is not None,
            softcap=None,
            scale=1.0,
            dtype=_name(head.weight.dtype),
            is_tied=is_tied,
        ),
        bound=rank_bound(
            head.embedding_size,
            has_bias=head.bias is not None,
            num_softmaxes=1 if is_linear else head.num_components,
        ),
        log_probs=partial(head_log_probs, head),
        linear_spectra=partial(head_singular_values, head) if is_linear else None,
        vectors=_head_vectors(head) if is_linear else None,
        mixture=head if head.num_components > 1 else None,
    )


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
        vectors=Vectors(
            weight=weight,
            bias=bias,
            states=Everywhere(),
            description=f"all vectors of {weight.shape[1]:,} numbers",
        )
        if layer.scale > 0
        else None,
        mixture=None,
    )


def _head_vectors(head: MixtureHead) -> Vectors:
    weight, bias = head.weight.detach(), None if head.bias is None else head.bias.detach()
    # An LSTM's output and a tanh are between -1 and 1, and so are means of them.
    if head.latent is None or head.activation == "tanh":
        description = "all states between -1 and 1 in each number"
        return Vectors(weight=weight, bias=bias, states=Box(-1, 1), description=description)
    description = f"all vectors of {head.embedding_size:,} numbers"
    return Vectors(weight=weight, bias=bias, states=Everywhere(), description=description)


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
    on_progress: Callable[[float, str], None] | None = None,
) -> tuple[Spectrum, ...]:
    bias = None if layer.bias is None else layer.bias.double() * layer.scale
    # The scale goes to the states: they are fewer than the words.
    context = hidden.double() * layer.scale
    return linear_singular_values(
        context, layer.weight, bias, counts=counts, on_progress=on_progress
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
