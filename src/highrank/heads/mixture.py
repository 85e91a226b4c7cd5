"""What the two mixtures share: K contexts, and their weights from a linear prior without bias."""

import torch
from torch import Tensor, nn

from highrank.heads.base import Head, Mixture
from highrank.ops.precision import at_least_float32


class MixtureHead(Head):
    """π = softmax(P hidden) and h_k = activation(L_k hidden + c_k); a subclass mixes."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
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
            num_components=num_components,
            embedding_size=embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.prior = nn.Linear(hidden_size, num_components, bias=False, device=device, dtype=dtype)

    def mixture(self, hidden: Tensor) -> Mixture:
        context = self._contexts(hidden)  # (..., K, E)
        logits = self.prior(hidden)  # (..., K)
        return Mixture(logits.log_softmax(-1, dtype=at_least_float32(logits.dtype)), context)
