"""Heads that are mixtures of softmaxes over contexts, one context being an ordinary softmax.

    p(token | hidden) = Σ_k weight_k · softmax(W context_k + b)[token]

A head states its idea in `mixture`; the fused loss and everything else follow. D hidden size,
K components, E embedding size, V vocabulary; `...` is any leading dimensions.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads.base import Head, MeasuredOutput, check_sizes
from highrank.heads.start import check_start_noise, start_nearly_equal
from highrank.ops.dropout import sequence_dropout
from highrank.ops.logit_map import LogitMap
from highrank.ops.loss import ByProduct, LossOptions, Reduction, Target, check_targets
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss
from highrank.ops.mixture_log_prob import mixture_argmax, mixture_log_prob
from highrank.ops.precision import at_least_float32, log_add
from highrank.ops.sampling import draw
from highrank.ops.sharding import as_in_first_process, is_distributed

Activation = Literal["tanh", "identity"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class Mixture(NamedTuple):
    log_weight: Tensor
    """(..., K), normalised."""
    context: Tensor
    """(..., K, E)."""


class MixtureHead(Head):
    """Base of the mixtures: the output embedding, and the contexts that meet it.

    With a `logit_map` its softmaxes are those of mapped logits.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        # Other contexts have other bounds: a proof about tokens must not lean on an inherited one.
        super().__init_subclass__(**options)
        if {"mixture", "softmaxes"} & set(vars(cls)) and "context_bound" not in vars(cls):
            cls.context_bound = MixtureHead.context_bound  # type: ignore[method-assign]

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        num_components: int,
        embedding_size: int | None,
        activation: Activation,
        dropout: float,
        bias: bool,
        batch_first: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        size = hidden_size if embedding_size is None else embedding_size
        check_sizes(num_components=num_components, embedding_size=size)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {activation!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.num_components, self.embedding_size = num_components, size
        self.activation: Activation = activation
        self.dropout, self.batch_first = dropout, batch_first
        self.logit_map: LogitMap | None = None
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(vocab_size, size, **options))
        self.bias = nn.Parameter(torch.empty(vocab_size, **options)) if bias else None
        self.latent = None
        if embedding_size is not None:
            self.latent = nn.Linear(hidden_size, num_components * embedding_size, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the paper's code: embedding uniform in ±0.1, bias 0, linear layers as torch does."""
        nn.init.uniform_(self.weight, -0.1, 0.1)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def resize(self, vocab_size: int) -> None:
        self._resize_embedding(vocab_size)

    @property
    def rank_bound(self) -> int | None:
        """Of one softmax: the contexts contribute E, the normaliser 1, the bias 1."""
        if self.logit_map is not None:
            return None
        return self.embedding_size + (1 if self.bias is None else 2)

    def context_bound(self, hidden_bound: float | None) -> float | None:
        """The largest absolute value of a number of a context; None if it is not known.

        Args:
            hidden_bound: the same of hidden states.
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
            logits = F.linear(context[..., k, :], self.weight, self.bias)  # (..., V)
            logits = self.logit_map(logits.to(at_least_float32(logits.dtype)))
            log_p = log_weight[..., k, None] + logits.log_softmax(-1)
            found = log_p if found is None else log_add(found, log_p)
        assert found is not None
        return found

    def _best(self, features: Mixture) -> Tensor:
        if not is_distributed(self.weight):
            return super()._best(features)
        return mixture_argmax(features.context, features.log_weight, self.weight, self.bias)

    def _by_chunks(
        self, shape: torch.Size, features: Mixture, tokens_of: Callable[[Mixture], Tensor]
    ) -> Tensor:
        # Processes that have a part of the vocabulary each are to have the same tokens.
        return as_in_first_process(super()._by_chunks(shape, features, tokens_of), self.weight)

    def extra_repr(self) -> str:
        text = f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}"
        if self.num_components > 1:
            text += f", num_components={self.num_components}"
        if self.latent is not None:
            text += f", embedding_size={self.embedding_size}, activation={self.activation!r}"
        text += f", dropout={self.dropout}, bias={self.bias is not None}"
        return text + (", batch_first=True" if self.batch_first else "")

    def _loss(
        self,
        features: Mixture,
        target: Target,
        reduction: Reduction,
        ignore_index: int,
        also: Sequence[ByProduct],
        options: LossOptions,
    ) -> MeasuredOutput:
        if self.logit_map is not None:
            self._refuse(("logit_map",), options)
            options = {**options, "logit_map": self.logit_map}
        token_loss, loss, found = mixture_loss(
            features.context,
            features.log_weight,
            self.weight,
            target,
            bias=self.bias,
            reduction=reduction,
            ignore_index=ignore_index,
            also=also,
            **options,
        )
        return MeasuredOutput(0.0 - token_loss, loss, found)

    def _draw(self, features: Mixture, generator: torch.Generator | None) -> Tensor:
        """The component first, then the token: exact, and one softmax a token."""
        log_weight, context = features  # (N, K), (N, K, E)
        chosen = as_in_first_process(draw(log_weight, generator), self.weight)  # (N,)
        rows = torch.arange(len(chosen), device=chosen.device)
        one = Mixture(torch.zeros_like(log_weight[:, :1]), context[rows, chosen].unsqueeze(1))
        return draw(self.log_prob_from(one), generator)

    def _contexts(self, hidden: Tensor) -> Tensor:
        """(..., K, E), with dropout: one mask per sequence, shared over time."""
        self._check_hidden(hidden)
        if self.latent is None:
            context = hidden
        else:
            context = ACTIVATIONS[self.activation](self.latent(hidden))
        K, E = self.num_components, self.embedding_size
        return self._dropped(context.view(*context.shape[:-1], K, E))

    def _dropped(self, context: Tensor) -> Tensor:
        """Contexts (..., K, E) with dropout, in training."""
        if not self.training:
            return context
        return sequence_dropout(context, self.dropout, context.dim() - 2, self.batch_first)


class PriorMixture(MixtureHead):
    """π = softmax(P hidden) and h_k = activation(L_k hidden + c_k); a subclass mixes."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        start_noise: float | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            vocab_size,
            num_components=num_components,
            embedding_size=embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        check_start_noise(start_noise)
        self.start_noise = start_noise
        self.prior = nn.Linear(hidden_size, num_components, bias=False, device=device, dtype=dtype)
        self._start()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The base's constructor comes here before there is a prior.
        if hasattr(self, "prior"):
            self._start()

    def _start(self) -> None:
        if self.start_noise is not None:
            assert self.latent is not None
            latents = [(self.latent, self.num_components)]
            start_nearly_equal(latents, [self.prior.weight], self.start_noise)

    def context_bound(self, hidden_bound: float | None) -> float | None:
        return 1.0 if self.activation == "tanh" else None

    def mixture(self, hidden: Tensor) -> Mixture:
        context = self._contexts(hidden)  # (..., K, E)
        logits = self.prior(hidden)  # (..., K)
        return Mixture(logits.log_softmax(-1, dtype=at_least_float32(logits.dtype)), context)


@torch.no_grad()
def log_responsibility(head: MixtureHead, hidden: Tensor, target: Tensor) -> Tensor:
    """log r (..., K), normalised: the posterior over the components, given the token.

        r_k = π_k · softmax(W h_k + b)[token] / p(token)

    A head with one softmax, as MoC, has K = 1 here. Of a token that no component can predict, the
    weights before it.

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
