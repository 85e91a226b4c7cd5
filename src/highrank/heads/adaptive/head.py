"""What adaptive heads share: bands of tokens by frequency, each with its own softmaxes.

    p(frequent token) = q(token),  p(token of tail i) = q(class i) · q_i(token)

q is over the R frequent tokens and one class per tail, q_i over the tokens of tail i. Both are
mixtures of softmaxes, most of them of one. The loss computes q_i only for the targets in tail i.
Token ids stay what they are: the head keeps the order of frequency.

N tokens, D hidden size, K components, E embedding size, V vocabulary, R frequent tokens, m tails;
band 0 has the frequent tokens, band i tail i. `...` is any leading dimensions.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from highrank.heads.adaptive.frequency import check_cutoffs, frequency_order
from highrank.heads.base import Head, MeasuredOutput, check_sizes, flattened
from highrank.heads.mixture import ACTIVATIONS, Activation
from highrank.ops.loss import (
    ByProduct,
    LossOptions,
    Reduction,
    Target,
    check_reduction,
    check_target_shape,
    check_targets,
)
from highrank.ops.loss.targets import reduce_summed_loss
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.mixture_log_prob import mixture_log_prob
from highrank.ops.precision import at_least_float32
from highrank.ops.row_blocks import inverse_permutation, row_blocks
from highrank.ops.sampling import draw
from highrank.ops.tracing import is_traced

Bands = tuple[Sequence[Tensor], Sequence[Tensor | None]]
"""The output embedding and the bias of each."""


class Features(NamedTuple):
    log_weight: Tensor
    """(..., K), normalised."""
    context: Tensor
    """(..., K, E), of band 0."""
    hidden: Tensor
    """(..., D), which the contexts of the tails are made from where they are needed."""
    masks: tuple[Tensor, ...]
    """The dropout of each tail's contexts, (..., K of the tail, E of the tail); or empty."""


class AdaptiveHead(Head):
    """Base of the adaptive heads; a subclass has the public arguments and `log_weight`."""

    has_classes: bool = True
    """Whether each tail's class has an embedding and a bias of its own."""
    order: Tensor
    """(V,), token ids by frequency: saved with the parameters."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        components: Sequence[int],
        embedding_size: int | None,
        cutoffs: Sequence[int],
        div_value: float,
        token_counts: Sequence[int] | None,
        activation: Activation,
        dropout: float,
        bias: bool,
        batch_first: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Args:
        components: K of each band.
        cutoffs: ranks at which a tail begins, the first being R.
        """
        super().__init__(hidden_size, vocab_size)
        size = hidden_size if embedding_size is None else embedding_size
        check_sizes(embedding_size=size, num_components=components[0])
        check_cutoffs(cutoffs, vocab_size)
        _check(div_value, activation, dropout)
        self.components, self.num_components = tuple(components), components[0]
        self.embedding_size, self.div_value = size, div_value
        self.activation, self.dropout, self.batch_first = activation, dropout, batch_first
        self.cutoffs = tuple(cutoffs)
        edges = (0, *self.cutoffs, vocab_size)
        self.sizes = tuple(b - a for a, b in pairwise(edges))
        self.widths = tuple(max(1, int(size // div_value**i)) for i in range(len(self.sizes)))
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self._frequency_order = frequency_order(token_counts, vocab_size)
        self.register_buffer("order", torch.empty(vocab_size, dtype=torch.long, device=device))
        self._make_embedding(bias, options)
        self.has_latent = embedding_size is not None
        self.latents = nn.ModuleList(
            nn.Linear(hidden_size, K * E, bias=self.has_latent, **options)
            for K, E in list(zip(self.components, self.widths, strict=True))[not self.has_latent :]
        )

    def _make_embedding(self, bias: bool, options: dict[str, Any]) -> None:
        V, E, m = self.vocab_size, self.embedding_size, len(self.cutoffs)
        if self.div_value == 1:
            self.weight = nn.Parameter(torch.empty(V, E, **options))
        else:
            bands = zip(self.sizes, self.widths, strict=True)
            self.weights = nn.ParameterList(torch.empty(n, width, **options) for n, width in bands)
        self.bias = nn.Parameter(torch.empty(V, **options)) if bias else None
        self.class_weight = self.class_bias = None
        if self.has_classes and m > 0:
            self.class_weight = nn.Parameter(torch.empty(m, E, **options))
            self.class_bias = nn.Parameter(torch.empty(m, **options)) if bias else None

    def reset_parameters(self) -> None:
        """Embeddings uniform in ±0.1, biases 0, linear layers as torch does."""
        self.order.copy_(torch.from_numpy(self._frequency_order))
        embedding = self.weights if self.is_banded else [self.weight]
        for weight in (*embedding, self.class_weight):
            if weight is not None:
                nn.init.uniform_(weight, -0.1, 0.1)
        for bias in (self.bias, self.class_bias):
            if bias is not None:
                nn.init.zeros_(bias)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    @property
    def is_banded(self) -> bool:
        """Whether each band has an embedding of its own width, rather than one for all."""
        return self.div_value != 1

    @property
    def num_frequent(self) -> int:
        """R."""
        return self.sizes[0]

    def tie(self, weight: Tensor | Sequence[Tensor]) -> None:
        """Share the output embedding: `weight` (V, E), or one of each band if they have widths."""
        if not self.is_banded:
            return super().tie(weight)  # type: ignore[arg-type]
        wanted = [tuple(band.shape) for band in self.weights]
        found = [tuple(weight.shape)] if isinstance(weight, Tensor) else [*map(_shape, weight)]
        if found != wanted:
            raise ValueError(
                f"the embedding must have bands {wanted}, as an AdaptiveEmbedding has, got {found}"
            )
        self.weights = nn.ParameterList(weight)
        return None

    def log_weight(self, hidden: Tensor) -> Tensor:
        """The weights (..., K) of the mixture in band 0."""
        raise NotImplementedError

    def features(self, hidden: Tensor, **past: Any) -> Features:
        if hidden.dim() < 1 or hidden.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden must be (..., {self.hidden_size}), got {tuple(hidden.shape)}")
        masks: tuple[Tensor, ...] = ()
        context = self._contexts(0, hidden)
        if self.training and self.dropout > 0:
            first, *rest = (self._mask(band, hidden) for band in range(len(self.sizes)))
            context, masks = context * first.to(context.dtype), tuple(rest)
        return Features(self.log_weight(hidden), context, hidden, masks)

    def log_prob_from(self, features: Features) -> Tensor:
        rows, biases = self._rows(), self._biases()
        context, weight, bias = self._first(features, rows, biases)
        log_p = mixture_log_prob(context, features.log_weight, weight, bias)  # (..., R + m)
        R, parts = self.num_frequent, [log_p[..., : self.num_frequent]]
        for tail in range(1, len(self.sizes)):
            log_weight, context = self._tail_mixture(tail, features)
            inside = mixture_log_prob(context, log_weight, rows[tail], biases[tail])
            parts.append(log_p[..., R + tail - 1, None] + inside)
        return torch.cat(parts, -1)[..., self._rank()]  # (..., V)

    def component_log_prob(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Of each component: its log-weight (..., K), and its log p (..., K, R + m).

        These are p of the frequent tokens, the most frequent first, and of whole tails. Inside a
        tail that is no mixture itself, all components predict the same.
        """
        features = self.features(hidden)
        context, weight, bias = self._first(features, self._rows(), self._biases())
        return features.log_weight, F.linear(context, weight, bias).log_softmax(-1)

    def extra_repr(self) -> str:
        text = f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}"
        if self.num_components > 1:
            text += f", num_components={self.num_components}"
        text += f", embedding_size={self.embedding_size if self.has_latent else None}"
        text += f", cutoffs={list(self.cutoffs)}, div_value={self.div_value}"
        return text + f", dropout={self.dropout}, bias={self.bias is not None}"

    def _loss(
        self,
        features: Features,
        target: Target,
        reduction: Reduction,
        ignore_index: int,
        also: Sequence[ByProduct],
        options: LossOptions,
    ) -> MeasuredOutput:
        """Tails for their targets only; with weights, smoothing, soft targets all that there is."""
        given = [name for name, value in options.items() if value is not None]
        is_plain = not (also or set(given) - {"chunk_bytes"})
        # How many targets are in a tail is not known while compiling.
        if isinstance(target, tuple) or not is_plain or is_traced(features.hidden):
            return super()._loss(features, target, reduction, ignore_index, also, options)
        check_reduction(reduction)
        check_target_shape(target, tuple(features.hidden.shape[:-1]))
        ids = target.reshape(-1).long()  # (N,)
        kept = (ids != ignore_index).nonzero().squeeze(1)
        check_targets(ids[kept], self.vocab_size)
        impossible = self._is_impossible(ids[kept])  # (kept,)
        used = kept[~impossible]  # (n,)
        flat = flattened(features, target.dim())
        chosen = flat if len(used) == len(ids) else tree_map(lambda leaf: leaf[used], flat)
        part, total = self._losses(
            chosen,
            self._rank()[ids[used]],
            "none" if reduction == "none" else "sum",
            options.get("chunk_bytes"),
        )
        token_loss = part.new_zeros(len(ids)).index_copy(0, used, part)
        token_loss[kept[impossible]] = torch.inf
        # What no bias forbids may be impossible in a subclass.
        impossible = token_loss[kept] == torch.inf
        token_loss = token_loss.reshape(target.shape)
        if reduction == "none":
            return MeasuredOutput(0.0 - token_loss, token_loss, {})
        loss = reduce_summed_loss(total, impossible, None, reduction)
        return MeasuredOutput(0.0 - token_loss, loss, {})

    def _losses(
        self, features: Features, rank: Tensor, reduction: Reduction, chunk_bytes: int | None
    ) -> tuple[Tensor, Tensor]:
        """Of targets (N,), given by their rank: each one's loss, and their sum.

        Args:
            reduction: "sum", or "none" for gradients of each token's loss.
        """
        rows, biases = self._rows(), self._biases()
        context, weight, bias = self._first(features, rows, biases)
        log_weight, (_, target) = features.log_weight, self._places(rank)
        settings: dict[str, Any] = {"reduction": reduction, "chunk_bytes": chunk_bytes}
        token_loss, total, _ = mixture_loss(
            context, log_weight, weight, target, bias=bias, **settings
        )
        for inside, part, more, _ in self._tail_losses(features, rank, (rows, biases), settings):
            token_loss, total = token_loss.index_add(0, inside, part), total.sum() + more.sum()
        return token_loss, total

    def _places(self, rank: Tensor) -> tuple[Tensor, Tensor]:
        """The band (N,) of each target, and its column (N,) in the first softmaxes."""
        band = torch.bucketize(rank, rank.new_tensor(self.cutoffs), right=True)
        return band, torch.where(band == 0, rank, self.num_frequent + band - 1)

    def _tail_losses(
        self, features: Features, rank: Tensor, bands: Bands, settings: dict[str, Any]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]]:
        """Of each tail: which targets are in it, and their `mixture_loss`, -log q_i of each."""
        (rows, biases), (band, _) = bands, self._places(rank)
        for tail in range(1, len(self.sizes)):
            # Also of no tokens: every parameter then has a gradient, as data parallelism wants.
            inside = (band == tail).nonzero().squeeze(1)
            chosen = tree_map(lambda leaf, inside=inside: leaf[inside], features)
            log_weight, context = self._tail_mixture(tail, chosen)
            target = rank[inside] - self.cutoffs[tail - 1]
            weight, bias = rows[tail], biases[tail]
            yield inside, *mixture_loss(context, log_weight, weight, target, bias=bias, **settings)

    def _draw(self, features: Features, generator: torch.Generator | None) -> Tensor:
        """Band and component first, then the token: tails only where they were drawn."""
        rows, biases = self._rows(), self._biases()
        first = self._first(features, rows, biases)
        rank = _draw_mixture(features.log_weight, *first, generator)  # (N,)
        tail_of = rank - self.num_frequent + 1  # (N,)
        for tail in range(1, len(self.sizes)):
            inside = (tail_of == tail).nonzero().squeeze(1)
            chosen = tree_map(lambda leaf, inside=inside: leaf[inside], features)
            found = _draw_mixture(
                *self._tail_mixture(tail, chosen), rows[tail], biases[tail], generator
            )
            rank[inside] = found + self.cutoffs[tail - 1]
        return self.order[rank]

    def _rank(self) -> Tensor:
        """(V,), the place of each token id in the order of frequency."""
        return inverse_permutation(self.order)

    def _rows(self) -> tuple[Tensor, ...]:
        """The output embedding of each band, (size, width)."""
        if self.is_banded:
            return tuple(self.weights)
        return row_blocks(self.weight, self.order, self.sizes)

    def _biases(self) -> tuple[Tensor | None, ...]:
        if self.bias is None:
            return (None,) * len(self.sizes)
        return row_blocks(self.bias, self.order, self.sizes)

    def _first(
        self, features: Features, rows: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the first softmaxes are made of: contexts (..., K, E), embedding and bias (R + m).

        Args:
            rows, biases: of each band.
        """
        weight, bias = rows[0], biases[0]
        if self.class_weight is not None:
            weight = torch.cat((weight, self.class_weight))  # (R + m, E)
        if bias is not None and self.class_bias is not None:
            bias = torch.cat((bias, self.class_bias))  # (R + m,)
        return features.context, weight, bias

    def _is_impossible(self, ids: Tensor) -> Tensor:
        """Whether a bias of -inf, of the token or of its class, forbids a token: (N,)."""
        if self.bias is None:
            return torch.zeros_like(ids, dtype=torch.bool)
        is_possible = (self.bias != -torch.inf)[self.order]  # (V,)
        if self.class_bias is not None:
            lengths = torch.tensor(self.sizes[1:], device=ids.device)
            has_class = (self.class_bias != -torch.inf).repeat_interleave(lengths)  # (V - R,)
            is_possible[self.num_frequent :] &= has_class
        return ~is_possible[self._rank()[ids]]

    def _contexts(self, band: int, hidden: Tensor) -> Tensor:
        """The contexts of a band, (..., K, E), before dropout."""
        K, E = self.components[band], self.widths[band]
        if self.has_latent:
            context = ACTIVATIONS[self.activation](self.latents[band](hidden))
        else:
            context = hidden if band == 0 else self.latents[band - 1](hidden)
        return context.view(*context.shape[:-1], K, E)

    def _tail_mixture(self, tail: int, features: Features) -> tuple[Tensor, Tensor]:
        """Weights (..., K) and contexts (..., K, E) of a tail."""
        context = self._contexts(tail, features.hidden)
        if features.masks:
            context = context * features.masks[tail - 1].to(context.dtype)
        if self.components[tail] > 1:
            return features.log_weight, context
        dtype = at_least_float32(context.dtype)
        return context.new_zeros(context.shape[:-1], dtype=dtype), context

    def _mask(self, band: int, hidden: Tensor) -> Tensor:
        """(..., K, E): dropout, one mask per sequence, shared over time."""
        shape = [*hidden.shape[:-1], self.components[band], self.widths[band]]
        own = list(shape)
        if hidden.dim() > 2:
            own[int(self.batch_first)] = 1
        return F.dropout(hidden.new_ones(own), self.dropout).expand(shape)

    def _context_span(self, bands: Sequence[int]) -> int:
        """No more functions of the hidden state, constants among them, span these contexts."""
        total = sum(self.components[band] * self.widths[band] for band in bands)
        total += self.bias is not None
        if self.has_latent and self.activation == "tanh":
            return total
        # Linear in the hidden state; only layers of embedding_size have a constant.
        return min(total, self.hidden_size + (self.bias is not None or self.has_latent))


def _draw_mixture(
    log_weight: Tensor,
    context: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """A column (N,) of a mixture of softmaxes: the component first."""
    chosen = draw(log_weight, generator)  # (N,)
    one = context[torch.arange(len(chosen), device=chosen.device), chosen].unsqueeze(1)  # (N, 1, E)
    log_p = mixture_log_prob(one, torch.zeros_like(log_weight[:, :1]), weight, bias)
    return draw(log_p, generator)


def _shape(weight: Any) -> tuple[int, ...]:
    if not isinstance(weight, nn.Parameter):
        raise ValueError(f"weight must be an nn.Parameter, got {type(weight).__name__}")
    return tuple(weight.shape)


def _check(div_value: float, activation: str, dropout: float) -> None:
    if not div_value >= 1:
        raise ValueError(f"div_value must be at least 1, got {div_value}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {activation!r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
