"""Base of adaptive heads: bands of tokens by frequency, each with its own softmaxes.

    p(frequent token) = q(token),  p(token of tail i) = q(class i) · q_i(token)

q is over the R frequent tokens and one class per tail, q_i over the tokens of tail i. Both are
mixtures of softmaxes, most of them of one. The loss computes q_i only for the targets in tail i.
Token ids stay what they are: the head keeps the order of frequency.

N tokens, D hidden size, K components, E embedding size, V vocabulary, R frequent tokens, m tails;
band 0 has the frequent tokens, band i tail i. `...` is any leading dimensions.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from highrank.heads.bases import frequency
from highrank.heads.bases.embedding import ContextOptions, EmbeddingHead
from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import Mixture, draw_component, single
from highrank.heads.bases.output import Beside, LossSettings
from highrank.heads.bases.token_rows import EMBEDDING_RANGE, check_sizes, parameter_shape
from highrank.ops.dropout import sequence_dropout
from highrank.ops.loss.targets import Targets, reduce_summed_loss
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.mixture_log_prob import mixture_log_prob
from highrank.ops.precision import at_least_float32
from highrank.ops.row_blocks import inverse_permutation, row_blocks
from highrank.ops.sampling import draw
from highrank.ops.tracing import is_traced

Band = tuple[Tensor, Tensor | None]
"""Output embedding and bias."""


class Features(NamedTuple):
    log_weight: Tensor  # (..., K), normalised
    context: Tensor  # (..., K, E), of band 0
    hidden: Tensor  # (..., D)
    """What the contexts of the tails are made from where they are needed."""
    masks: tuple[Tensor, ...]
    """The dropout of each tail's contexts, (..., K of the tail, E of the tail); or empty."""


class AdaptiveOptions(ContextOptions, total=False):
    """Keyword arguments of every adaptive head's constructor."""

    frequent: int | Literal["auto"]
    cutoffs: tuple[int, ...]
    div_value: float
    token_counts: Sequence[int] | None


class AdaptiveHead(EmbeddingHead):
    """Base of the adaptive heads; a mixture writes `log_weight`.

    Args:
        frequent: R, how many tokens are in the first softmaxes, by the counts of the training
            split; auto takes the R with the least cost, for K > 1 the largest R with which the loss
            costs no more than one softmax over the vocabulary.
        cutoffs: ranks at which further tails begin; without any, there is one tail.
        div_value: each tail has contexts and embeddings this much narrower than the band before it.
        token_counts: how often the training split has each token; None takes the ids to be sorted
            by frequency.
        bias: whether each token and each class has a bias.
        options: and sizes, as of `EmbeddingHead`.
    """

    # The tails would have to change, too.
    resize = Head.resize
    order: Tensor
    """(V,), token ids by frequency: saved with the parameters."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int | None,
        *,
        mix_first_tail: bool,
        frequent: int | Literal["auto"] = "auto",
        cutoffs: tuple[int, ...] = (),
        div_value: float = 1.0,
        token_counts: Sequence[int] | None = None,
        **options: Unpack[ContextOptions],
    ) -> None:
        size = hidden_size if embedding_size is None else embedding_size
        super().__init__(hidden_size, vocab_size, size, **options)
        check_sizes(num_components=num_components)
        if not div_value >= 1:
            raise ValueError(f"div_value must be at least 1, got {div_value}")
        of_tail = num_components if mix_first_tail else 1
        if frequent == "auto":
            frequent = frequency.best_frequent(
                token_counts, vocab_size, num_components, of_tail / div_value
            )
        self.cutoffs = frequency.tail_starts(frequent, cutoffs, vocab_size)
        self.sizes = tuple(b - a for a, b in pairwise((0, *self.cutoffs, vocab_size)))
        tails = [of_tail if tail == 0 else 1 for tail in range(len(self.cutoffs))]
        self.components = (num_components, *tails)
        self.widths = tuple(max(1, int(size // div_value**i)) for i in range(len(self.sizes)))
        self.num_components, self.has_latent = num_components, embedding_size is not None
        self.div_value = div_value
        self._frequency_order = frequency.frequency_order(token_counts, vocab_size)
        device = self.weight.device
        self.register_buffer("order", torch.empty(vocab_size, dtype=torch.long, device=device))
        self._make_parameters()

    def _make_parameters(self) -> None:
        m, empty = len(self.cutoffs), self.weight.new_empty
        self.class_weight = self.class_bias = None
        if m > 0:
            self.class_weight = nn.Parameter(empty(m, self.embedding_size))
            self.class_bias = None if self.bias is None else nn.Parameter(empty(m))
        sizes = [K * width for K, width in zip(self.components, self.widths, strict=True)]
        if not self.has_latent:
            # The hidden state itself is the first band's context.
            del sizes[0]
        latents = [self._linear(self.hidden_size, size, self.has_latent) for size in sizes]
        if self.is_banded:
            del self.weight
            bands = zip(self.sizes, self.widths, strict=True)
            self.weights = nn.ParameterList(empty(n, width) for n, width in bands)
        self.latents = nn.ModuleList(latents)

    def reset_parameters(self) -> None:
        """Embeddings uniform in ±0.1, biases 0, linear layers as torch does."""
        self.order.copy_(torch.from_numpy(self._frequency_order))
        embedding = self.weights if self.is_banded else [self.weight]
        for weight in (*embedding, self.class_weight):
            if weight is not None:
                nn.init.uniform_(weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
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
        found = [*map(parameter_shape, [weight] if isinstance(weight, Tensor) else weight)]
        if found != wanted:
            raise ValueError(
                f"the embedding must have bands {wanted}, as an AdaptiveEmbedding has, got {found}"
            )
        self.weights = nn.ParameterList(weight)
        return None

    @property
    def rank_bound(self) -> int | None:
        """Each token of a mixture has a column of its own, each tail a class and a normaliser.

        The contexts of single softmaxes and a constant for the bias span the other columns. None
        where all softmaxes are mixed.
        """
        single = [band for band, K in enumerate(self.components) if K == 1]
        if not single:
            return None
        mixed = sum(n for n, K in zip(self.sizes, self.components, strict=True) if K > 1)
        span = sum(self.widths[band] for band in single) + (self.bias is not None)
        if not self.has_latent or self.activation != "tanh":
            # Linear in the hidden state; only layers of embedding_size have a constant.
            span = min(span, self.hidden_size + (self.bias is not None or self.has_latent))
        return mixed + span + len(single)

    def log_weight(self, hidden: Tensor) -> Tensor:
        """The logarithm of the weights (..., K) of the mixture in band 0."""
        return hidden.new_zeros(*hidden.shape[:-1], 1, dtype=at_least_float32(hidden.dtype))

    def features(self, hidden: Tensor, **past: Any) -> Features:
        self._check_hidden(hidden)
        masks: tuple[Tensor, ...] = ()
        context = self._contexts(0, hidden)
        if self.training and self.dropout > 0:
            first, *rest = (self._mask(band, hidden) for band in range(len(self.sizes)))
            context, masks = context * first.to(context.dtype), tuple(rest)
        return Features(self.log_weight(hidden), context, hidden, masks)

    def log_prob_from(self, features: Features) -> Tensor:
        first, *tails = self._bands()
        log_p = mixture_log_prob(features.context, features.log_weight, *first)  # (..., R + m)
        R, parts = self.num_frequent, [log_p[..., : self.num_frequent]]
        for tail, band in enumerate(tails, 1):
            log_weight, context = self._tail_mixture(tail, features)
            inside = mixture_log_prob(context, log_weight, *band)
            parts.append(log_p[..., R + tail - 1, None] + inside)
        return torch.cat(parts, -1)[..., self._rank()]  # (..., V)

    def component_log_prob(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The log-weight (..., K) of each component, and its log p (..., K, R + m).

        These are p of the frequent tokens, the most frequent first, and of whole tails. Inside a
        tail that is no mixture itself, all components predict the same.
        """
        features = self.features(hidden)
        logits = F.linear(features.context, *self._bands()[0])
        return features.log_weight, logits.log_softmax(-1)

    def _flat_loss(
        self, features: Features, targets: Targets, settings: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Tails for their targets only; with weights, smoothing or soft targets for all tokens."""
        is_plain = targets.has_ids_only and targets.scale is None
        # How many targets are in a tail is not known while compiling.
        if not is_plain or is_traced(features.hidden):
            return super()._flat_loss(features, targets, settings)
        reduction, rank = settings.reduction, self._rank()[targets.target.squeeze(1)]  # (N,)
        options: dict[str, Any] = {"chunk_bytes": settings.options.get("chunk_bytes")}
        options["reduction"] = "none" if reduction == "none" else "sum"
        token_loss, total = self._losses(features, rank, options, settings.beside)
        if reduction == "none":
            return token_loss, token_loss
        return token_loss, reduce_summed_loss(total, token_loss == torch.inf, None, reduction)

    def _losses(
        self, features: Features, rank: Tensor, settings: dict[str, Any], beside: Beside | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of each target (N,), given by their rank, and the sum."""
        (weight, bias), *tails = self._bands()
        log_weight, (_, target) = features.log_weight, self._places(rank)
        # Where both must be there, what a tail's softmax gives its targets is a part of the weight.
        is_joint = beside is not None or self._forbids_tokens()
        if beside is not None:
            log_weight = log_weight + beside.log_gate[:, :1]
        if is_joint:
            of_tail = settings | {"reduction": "none"}
            for inside, part, *_ in self._tail_losses(features, rank, tails, of_tail):
                part = part[:, None].expand(-1, log_weight.shape[1])
                log_weight = log_weight.index_add(0, inside, -part)
        extra = None if beside is None else (beside.log_gate[:, 1:], beside.log_q)
        token_loss, total, _ = mixture_loss(
            features.context, log_weight, weight, target, bias=bias, extra=extra, **settings
        )
        if not is_joint:
            for inside, part, more, _ in self._tail_losses(features, rank, tails, settings):
                token_loss, total = token_loss.index_add(0, inside, part), total.sum() + more.sum()
        return token_loss, total

    def _places(self, rank: Tensor) -> tuple[Tensor, Tensor]:
        """The band (N,) of each target, and its column (N,) in the first softmaxes."""
        band = torch.bucketize(rank, rank.new_tensor(self.cutoffs), right=True)
        return band, torch.where(band == 0, rank, self.num_frequent + band - 1)

    def _tail_losses(
        self, features: Features, rank: Tensor, tails: Sequence[Band], settings: dict[str, Any]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]]:
        """For each tail, which targets are in it, and their `mixture_loss`, -log q_i of each."""
        band_of, _ = self._places(rank)
        for tail, (weight, bias) in enumerate(tails, 1):
            # Also without tokens: every parameter then has a gradient, as data parallelism wants.
            inside = (band_of == tail).nonzero().squeeze(1)
            in_tail = tree_map(lambda leaf, inside=inside: leaf[inside], features)
            log_weight, context = self._tail_mixture(tail, in_tail)
            target = rank[inside] - self.cutoffs[tail - 1]
            yield inside, *mixture_loss(context, log_weight, weight, target, bias=bias, **settings)

    def _draw(self, features: Features, generator: torch.Generator | None) -> Tensor:
        """Band and component first, then the token: tails only where they were drawn."""
        first, *tails = self._bands()
        mixture = Mixture(features.log_weight, features.context)
        rank = _draw_column(mixture, first, generator)  # (N,)
        tail_of = rank - self.num_frequent + 1  # (N,)
        for tail, band in enumerate(tails, 1):
            inside = (tail_of == tail).nonzero().squeeze(1)
            in_tail = tree_map(lambda leaf, inside=inside: leaf[inside], features)
            found = _draw_column(self._tail_mixture(tail, in_tail), band, generator)
            rank[inside] = found + self.cutoffs[tail - 1]
        return self.order[rank]

    @torch.no_grad()
    def scale_embedding(self, factor: float) -> None:
        for weight in self.weights if self.is_banded else (self.weight,):
            weight.mul_(factor)

    @torch.no_grad()
    def start_at_unigram(self, token_counts: Sequence[int]) -> None:
        super().start_at_unigram(token_counts)
        if self.class_bias is not None:
            log_prob = frequency.log_frequencies(token_counts, self.vocab_size).to(
                self.class_bias.device
            )
            masses = [tail.logsumexp(0) for tail in self._blocks(log_prob)[1:]]
            self.class_bias.add_(torch.stack(masses).to(self.class_bias))

    def _rank(self) -> Tensor:
        """(V,), the place of each token id in the order of frequency."""
        return inverse_permutation(self.order)

    def _bands(self) -> list[Band]:
        """The output embedding (size, width) and the bias of each band, in band 0 with classes."""
        rows = tuple(self.weights) if self.is_banded else self._blocks(self.weight)
        biases = [None for _ in rows] if self.bias is None else self._blocks(self.bias)
        (weight, bias), *tails = zip(rows, biases, strict=True)
        if self.class_weight is not None:
            weight = torch.cat((weight, self.class_weight))  # (R + m, E)
        if bias is not None and self.class_bias is not None:
            bias = torch.cat((bias, self.class_bias))  # (R + m,)
        return [(weight, bias), *tails]

    def _blocks(self, table: Tensor) -> tuple[Tensor, ...]:
        """The rows of each band in a table (V, …)."""
        return row_blocks(table, self.order, self.sizes)

    def _forbids_tokens(self) -> bool:
        """Whether a bias of -inf, that of a token or of a class, makes targets impossible."""
        biases = (self.bias, self.class_bias)
        return any(bias is not None and bool((bias == -torch.inf).any()) for bias in biases)

    def _contexts(self, band: int, hidden: Tensor) -> Tensor:
        """The contexts of a band, (..., K, E), before dropout."""
        K, E = self.components[band], self.widths[band]
        if self.has_latent:
            context = self._activated(self.latents[band](hidden))
        else:
            context = hidden if band == 0 else self.latents[band - 1](hidden)
        return context.view(*context.shape[:-1], K, E)

    def _tail_mixture(self, tail: int, features: Features) -> Mixture:
        """Weights (..., K) and contexts (..., K, E) of a tail."""
        context = self._contexts(tail, features.hidden)
        if features.masks:
            context = context * features.masks[tail - 1].to(context.dtype)
        if self.components[tail] > 1:
            return Mixture(features.log_weight, context)
        return single(context)

    def _mask(self, band: int, hidden: Tensor) -> Tensor:
        """(..., K, E): dropout, one mask per sequence, shared over time."""
        ones = hidden.new_ones(*hidden.shape[:-1], self.components[band], self.widths[band])
        return sequence_dropout(ones, self.dropout, hidden.dim() - 1, self.batch_first)


def _draw_column(mixture: Mixture, band: Band, generator: torch.Generator | None) -> Tensor:
    """A column (N,) of a mixture of softmaxes: the component first."""
    log_weight, context = draw_component(mixture, generator)
    return draw(mixture_log_prob(context, log_weight, *band), generator)
