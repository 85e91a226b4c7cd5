"""One softmax: p = softmax(W context + b), the usual output layer."""

import torch
from torch import Tensor

from highrank.heads.mixture import Mixture, MixtureHead
from highrank.ops.numerics import at_least_float32


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
        activation: str = "tanh",
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

    def mixture(self, hidden: Tensor) -> Mixture:
        context = self._contexts(hidden)  # (..., 1, E)
        dtype = at_least_float32(context.dtype)
        return Mixture(context.new_zeros(context.shape[:-1], dtype=dtype), context)
