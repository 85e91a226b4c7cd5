"""A linear output layer of stored weights: p = softmax(φ(scale · (W hidden + b)))."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.heads.bases.head import Head
from highrank.ops.logit_map import Softcap

CHUNK_TOKENS = 8192


class LinearHead(Head):
    """A softmax whose weights stay as they are stored, in copies of the head, too.

    Each use converts a chunk of them at a time to the precision of the hidden states. The layer of
    somebody else's model is read as such a head; a model of ours has a `Softmax`, which trains.

    Args:
        weight: (V, D).
        bias: (V,).
        scale: of the logits, positive.
        softcap: c of φ(z) = c · tanh(z / c).
    """

    weight: Tensor  # type: ignore[assignment]
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__(weight.shape[1], len(weight))
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.scale, self.softcap = scale, softcap
        self.logit_map = None if softcap is None else Softcap(softcap)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LinearHead":
        return LinearHead(self.weight, self.bias, scale=self.scale, softcap=self.softcap)

    def cpu(self) -> "LinearHead":
        """A head with the weights on the CPU."""
        bias = None if self.bias is None else self.bias.cpu()
        return LinearHead(self.weight.cpu(), bias, scale=self.scale, softcap=self.softcap)

    @property
    def rank_bound(self) -> int | None:
        if self.logit_map is not None:
            return None
        return self.hidden_size + (1 if self.bias is None else 2)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., V), in the precision of `hidden` (..., D)."""
        # A copy of all weights in another precision can be larger than the model.
        starts = range(0, len(self.weight), CHUNK_TOKENS)
        return torch.cat([self._logits(hidden, slice(i, i + CHUNK_TOKENS)) for i in starts], -1)

    def log_prob_from(self, features: Tensor) -> Tensor:
        return self.logits(features).log_softmax(-1)

    def _logits(self, hidden: Tensor, tokens: slice) -> Tensor:
        weight = self.weight[tokens].to(hidden.dtype)
        bias = None if self.bias is None else self.bias[tokens].to(hidden.dtype)
        logits = F.linear(hidden, weight, bias) * self.scale
        return logits if self.logit_map is None else self.logit_map(logits)
