"""Heads that are mixtures of softmaxes over contexts, one context being an ordinary softmax.

    p(token | hidden) = Σ_k weight_k · softmax(W context_k + b)[token]

A head states its idea in `mixture`; the fused loss and everything else follow. D hidden size,
K components, E embedding size, V vocabulary; `...` is any leading dimensions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from highrank.heads.bases.embedding import ContextOptions, EmbeddingHead
from highrank.heads.bases.output import LossSettings, MeasuredOutput
from highrank.heads.bases.start import start_nearly_equal
from highrank.heads.bases.token_rows import check_sizes
from highrank.ops.logit_map import LogitMap
from highrank.ops.loss import Target, check_targets
from highrank.ops.mixed_linear import linear, through
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss
from highrank.ops.mixture_log_prob import mixture_argmax, mixture_log_prob
from highrank.ops.precision import at_least_float32, log_add
from highrank.ops.sampling import draw
from highrank.ops.sharding import as_in_first_process, is_distributed


class PriorOptions(ContextOptions, total=False):
    """Keyword arguments of `PriorMixture`."""

    start_noise: float | None


class Mixture(NamedTuple):
    log_weight: Tensor  # (..., K), normalised
    context: Tensor  # (..., K, E)


class MixtureHead(EmbeddingHead):
    """Base of the mixtures: contexts that meet the output embedding.

    With a `logit_map` its softmaxes are those of mapped logits.

    Args:
        num_components: K.
        embedding_size: E, for contexts activation(Linear(hidden)); None takes the hidden state
            itself as the context.
        options: and sizes, as of `EmbeddingHead`.
    """

    default_components = 4

    def __init_subclass__(cls, **options: Any) -> None:
        # Other contexts have other bounds: a proof about tokens must not lean on an inherited one.
        super().__init_subclass__(**options)
        if {"mixture", "softmaxes"} & set(vars(cls)) and "context_bound" not in vars(cls):
            cls.context_bound = MixtureHead.context_bound  # type: ignore[method-assign]

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int | None,
        **options: Unpack[ContextOptions],
    ) -> None:
        size = hidden_size if embedding_size is None else embedding_size
        super().__init__(hidden_size, vocab_size, size, **options)
        check_sizes(num_components=num_components)
        self.num_components = num_components
        self.logit_map: LogitMap | None = None
        self.latent: nn.Linear | None = None

    @property
    def rank_bound(self) -> int | None:
        """That of one softmax if K = 1; no bound is known otherwise."""
        return self.softmax_rank_bound if self.num_components == 1 else None

    @property
    def softmax_rank_bound(self) -> int | None:
        """The bound for one softmax: the contexts contribute E, the normaliser 1, the bias 1."""
        if self.logit_map is not None:
            return None
        return self.embedding_size + (1 if self.bias is None else 2)

    def context_bound(self, hidden_bound: float | None) -> float | None:
        """The largest absolute value of a number of a context; None if it is not known.

        Args:
            hidden_bound: the largest absolute value of a number of a hidden state.
        """
        return None

    def mixture(self, hidden: Tensor) -> Mixture:
        """The weights (..., K) and the contexts (..., K, E) of a hidden state (..., D)."""
        raise NotImplementedError

    def softmaxes(self, hidden: Tensor) -> Mixture:
        """The contexts that each get a softmax, and the weights of those softmaxes."""
        return self.mixture(hidden)

    def features(self, hidden: Tensor, **past: Any) -> Mixture:
        return self.softmaxes(hidden)

    def log_prob_from(self, features: Mixture) -> Tensor:
        log_weight, context = features
        if self.logit_map is None:
            return mixture_log_prob(context, log_weight, self.weight, self.bias)
        found = None
        for k in range(context.shape[-2]):
            logits = linear(context[..., k, :], self.weight, self.bias)  # (..., V)
            logits = self.logit_map(logits.to(at_least_float32(logits.dtype)))
            log_p = log_weight[..., k, None] + logits.log_softmax(-1)
            found = log_p if found is None else log_add(found, log_p)
        assert found is not None
        return found

    def _best(self, features: Mixture) -> Tensor:
        log_weight, context = features
        if is_distributed(self.weight):
            return mixture_argmax(context, log_weight, self.weight, self.bias)
        is_own = type(self).log_prob_from is not MixtureHead.log_prob_from
        if is_own or context.shape[-2] > 1 or self.logit_map is not None:
            return super()._best(features)
        # One softmax keeps the order of its logits.
        return linear(context.squeeze(-2), self.weight, self.bias).argmax(-1)

    def _by_chunks(
        self, shape: torch.Size, features: Mixture, tokens_of: Callable[[Mixture], Tensor]
    ) -> Tensor:
        # Processes that have a part of the vocabulary each are to have the same tokens.
        return as_in_first_process(super()._by_chunks(shape, features, tokens_of), self.weight)

    def _loss(self, features: Mixture, target: Target, settings: LossSettings) -> MeasuredOutput:
        # The mixture loss trains no parameters of a map.
        if isinstance(self.logit_map, nn.Module):
            return super()._loss(features, target, settings)
        options = settings.arguments()
        if self.logit_map is not None:
            self._refuse(("logit_map",), options)
            options["logit_map"] = self.logit_map
        log_weight, context = features
        if settings.beside is not None:
            log_gate, log_q = settings.beside
            log_weight = log_weight + log_gate[..., :1]
            options["extra"] = log_gate[..., 1:], log_q
        token_loss, loss, found = mixture_loss(
            context, log_weight, self.weight, target, bias=self.bias, **options
        )
        return MeasuredOutput(0.0 - token_loss, loss, found)

    def _draw(self, features: Mixture, generator: torch.Generator | None) -> Tensor:
        """The component first, then the token: exact, and one softmax a token."""
        component = draw_component(features, generator, self.weight)
        return draw(self.log_prob_from(component), generator)

    def _contexts(self, hidden: Tensor) -> Tensor:
        """(..., K, E), with dropout: one mask per sequence, shared over time."""
        self._check_hidden(hidden)
        context = hidden if self.latent is None else self._activated(through(self.latent, hidden))
        K, E = self.num_components, self.embedding_size
        return self._dropped(context.view(*context.shape[:-1], K, E))


class PriorMixture(MixtureHead):
    """π = softmax(P hidden) and h_k = activation(L_k hidden + c_k); a subclass mixes.

    Args:
        start_noise: start with nearly equal contexts: all the same, plus noise that sums to zero,
            of this fraction of their standard deviation. None (the paper) draws them independently.
        options: and sizes, as of `MixtureHead`.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        start_noise: float | None = None,
        **options: Unpack[ContextOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, num_components, embedding_size, **options)
        self.start_noise = start_noise
        self.latent: nn.Linear = self._linear(hidden_size, num_components * embedding_size)
        self.prior = self._empty_linear(hidden_size, num_components, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        latents = [(self.latent, self.num_components)]
        start_nearly_equal(latents, [self.prior.weight], self.start_noise)

    def context_bound(self, hidden_bound: float | None) -> float | None:
        return 1.0 if self.activation == "tanh" else None

    def mixture(self, hidden: Tensor) -> Mixture:
        context = self._contexts(hidden)  # (..., K, E)
        return Mixture(self.log_weight(hidden), context)

    def log_weight(self, hidden: Tensor) -> Tensor:
        """log π, (..., K)."""
        return log_weights(through(self.prior, hidden))


def single(context: Tensor) -> Mixture:
    """The mixture of one softmax, from contexts (..., 1, E)."""
    dtype = at_least_float32(context.dtype)
    return Mixture(context.new_zeros(context.shape[:-1], dtype=dtype), context)


def draw_component(
    mixture: Mixture, generator: torch.Generator | None, weight: Tensor | None = None
) -> Mixture:
    """One component of each of N tokens, drawn by its weight: log-weights (N, 1) of 0.

    Args:
        weight: the output embedding; processes that have parts of it draw the same.
    """
    log_weight, context = mixture  # (N, K), (N, K, E)
    drawn = as_in_first_process(draw(log_weight, generator), weight)  # (N,)
    rows = torch.arange(len(drawn), device=drawn.device)
    return Mixture(torch.zeros_like(log_weight[:, :1]), context[rows, drawn].unsqueeze(1))


def log_weights(logits: Tensor) -> Tensor:
    """The logarithm of their softmax (..., K), in at least float32."""
    return logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))


@torch.no_grad()
def log_responsibility(head: MixtureHead, hidden: Tensor, target: Tensor) -> Tensor:
    """log r (..., K), normalised: the posterior over the components, given the token.

        r_k = π_k · softmax(W h_k + b)[token] / p(token)

    A head with one softmax, as MoC, has K = 1 here. For a token that no component can predict, it
    is the prior.

    Args:
        hidden: (..., D).
        target: (...), token ids.
    """
    if target.shape != hidden.shape[:-1]:
        raise ValueError(f"target must be {tuple(hidden.shape[:-1])}, got {tuple(target.shape)}")
    check_targets(target.reshape(-1), head.vocab_size)
    log_weight, context = head.softmaxes(hidden)  # (..., K), (..., K, E)
    loss = mixture_cross_entropy(
        context.unsqueeze(-2),  # (..., K, 1, E)
        torch.zeros_like(log_weight).unsqueeze(-1),  # (..., K, 1)
        head.weight,
        target.unsqueeze(-1).expand(log_weight.shape),  # (..., K)
        bias=head.bias,
        logit_map=head.logit_map,
        reduction="none",
    )  # (..., K)
    joint = log_weight - loss
    is_impossible = joint.isneginf().all(-1, keepdim=True)  # (..., 1)
    return torch.where(is_impossible, log_weight, joint).log_softmax(-1)
