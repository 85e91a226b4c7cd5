"""One softmax: p = softmax(W context + b), the usual output layer."""

from typing import Unpack

from torch import Tensor

from highrank.heads.bases.embedding import ContextOptions
from highrank.heads.bases.mixture import Mixture, MixtureHead, single
from highrank.heads.bases.output import LossSettings, MeasuredOutput
from highrank.ops.linear_cross_entropy import small_loss
from highrank.ops.loss import Target


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
            context, (reduction, ignore_index, *_) = features.context.squeeze(-2), settings
            found = small_loss(
                context, self.weight, target, self.bias, None, reduction, ignore_index
            )
            if found is not None:
                return MeasuredOutput(0.0 - found[0], found[1], {})
        return super()._loss(features, target, settings)

    def mixture(self, hidden: Tensor) -> Mixture:
        return single(self._contexts(hidden))
