"""One softmax: p = softmax(W context + b), the usual output layer."""

from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from highrank.heads.bases.embedding import ContextOptions
from highrank.heads.bases.mixture import Mixture, MixtureHead, single
from highrank.heads.bases.output import LossSettings, MeasuredOutput
from highrank.ops.linear_cross_entropy import is_small
from highrank.ops.loss import REDUCTIONS, Target


class Softmax(MixtureHead):
    """The head that the mixtures are compared with.

    Args:
        embedding_size: E, for context = activation(Linear(hidden)); None takes the hidden state
            itself as the context.
        options: and sizes, as of `MixtureHead`.
    """

    title = "Softmax"
    default_components = 1

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int | None = None,
        **options: Unpack[ContextOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, 1, embedding_size, **options)
        if embedding_size is not None:
            self.latent = self._linear(hidden_size, embedding_size)
        self.reset_parameters()

    def context_bound(self, hidden_bound: float | None) -> float | None:
        if self.latent is None:
            return hidden_bound
        return 1.0 if self.activation == "tanh" else None

    def _loss(self, features: Mixture, target: Target, settings: LossSettings) -> MeasuredOutput:
        is_plain = not (settings.also or settings.options or settings.beside or self.logit_map)
        if isinstance(target, Tensor) and is_plain:
            found = self._small_loss(features.context.squeeze(-2), target, settings)
            if found is not None:
                return found
        return super()._loss(features, target, settings)

    def _small_loss(
        self, context: Tensor, target: Tensor, settings: LossSettings
    ) -> MeasuredOutput | None:
        """The loss by torch's own functions, where these are faster than chunks; otherwise None.

        They have gradients for impossible targets, and other words for wrong arguments.
        """
        reduction, ignore_index, *_ = settings
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
        return single(self._contexts(hidden))
