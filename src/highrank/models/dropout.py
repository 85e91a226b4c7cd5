"""Dropouts of AWD-LSTM: Merity, Keskar and Socher (2018), arXiv 1708.02182; Gal (2016).

Locked dropout is `highrank.ops.dropout.locked_dropout`. V vocabulary, E embedding size, H hidden.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def embed_with_dropout(embedding: nn.Embedding, tokens: Tensor, p: float) -> Tensor:
    """Embed, with whole words left out: a dropped word is zero wherever it occurs."""
    if p == 0:
        return embedding(tokens)  # type: ignore[no-any-return]
    mask = F.dropout(embedding.weight.new_ones(embedding.num_embeddings, 1), p)  # (V, 1)
    return embedding(tokens) * mask[tokens]  # type: ignore[no-any-return]


class WeightDropLSTM(nn.LSTM):
    """One LSTM layer whose recurrent matrix is dropped out element by element.

    The mask is drawn once per call, so it is the same for all time steps of a window.

    Args:
        weight_dropout: share of the recurrent weights (4H, H) that is zero in training.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, device=device, dtype=dtype)
        self.weight_dropout = weight_dropout

    def run(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `forward`, with the dropout: outputs (T, B, H) and the new state, each (1, B, H)."""
        if not self.training or self.weight_dropout == 0:
            return self(x, state)  # type: ignore[no-any-return]
        recurrent = F.dropout(self.get_parameter("weight_hh_l0"), self.weight_dropout)
        dropped = {"weight_hh_l0": recurrent}
        return torch.func.functional_call(self, dropped, (x, state))  # type: ignore[no-any-return]


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Turn off everything random in a model, in training mode too; on exit, as it was before."""
    saved = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in saved:
            module.training = training
