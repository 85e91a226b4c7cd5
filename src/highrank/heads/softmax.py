"""One softmax: p = softmax(W context + b), the usual output layer."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.heads.base import MeasuredOutput
from highrank.heads.mixture import Activation, Mixture, MixtureHead
from highrank.ops.linear_cross_entropy import is_small
from highrank.ops.loss import REDUCTIONS, ByProduct, LossOptions, Reduction, Target
from highrank.ops.precision import at_least_float32


class Softmax(MixtureHead):
    """The head that the mixtures are compared with.

    Args:
        hidden_size: D.
        vocab_size: V.
        embedding_size: E, for context = activation(Linear(hidden)); None takes the hidden state
            itself as the context.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence.
        bias: whether each token has a bias.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int | None = None,
        *,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            vocab_size,
            num_components=1,
            embedding_size=embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )

    def context_bound(self, hidden_bound: float | None) -> float | None:
        if self.latent is None:
            return hidden_bound
        return 1.0 if self.activation == "tanh" else None

    def _loss(
        self,
        features: Mixture,
        target: Target,
        reduction: Reduction,
        ignore_index: int,
        also: Sequence[ByProduct],
        options: LossOptions,
    ) -> MeasuredOutput:
        if isinstance(target, Tensor) and not (also or options or self.logit_map):
            found = self._small_loss(features.context.squeeze(-2), target, reduction, ignore_index)
            if found is not None:
                return found
        return super()._loss(features, target, reduction, ignore_index, also, options)

    def _small_loss(
        self, context: Tensor, target: Tensor, reduction: Reduction, ignore_index: int
    ) -> MeasuredOutput | None:
        """By torch's own functions, where these are faster than chunks; otherwise None.

        They have gradients for impossible targets, and other words for wrong arguments.
        """
        is_known = reduction in REDUCTIONS and target.shape == context.shape[:-1]
        if not is_known or not is_small(context, self.weight):
            return None
        ids = target.reshape(-1).long()  # (N,)
        log_p = (
            F.linear(context, self.weight, self.bias)
            .log_softmax(-1)
            .view(len(ids), self.vocab_size)
        )
        try:
            loss = F.nll_loss(log_p, ids, ignore_index=ignore_index, reduction=reduction)
        except IndexError:
            return None
        output = F.nll_loss(log_p.detach(), ids, ignore_index=ignore_index, reduction="none")
        if not output.isfinite().all():
            return None
        if reduction == "none":
            loss = loss.view(target.shape)
            return MeasuredOutput(0.0 - loss, loss, {})
        return MeasuredOutput(0.0 - output.view(target.shape), loss, {})

    def mixture(self, hidden: Tensor) -> Mixture:
        context = self._contexts(hidden)  # (..., 1, E)
        dtype = at_least_float32(context.dtype)
        return Mixture(context.new_zeros(context.shape[:-1], dtype=dtype), context)
