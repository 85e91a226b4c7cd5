"""Elementwise maps of logits, applied before the softmax: softmax(φ(z)) instead of softmax(z).

A map is an object with a value and a slope; the mixture loss takes any. R rows, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LogitMap(Protocol):
    """φ, without parameters that are to be trained through the loss."""

    def __call__(self, logits: Tensor) -> Tensor:
        """φ(z), differentiable."""

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """φ(z) and φ′(z), each (R, V); may overwrite the logits. No gradients flow here."""


@dataclass(frozen=True)
class Softcap:
    """φ(z) = cap · tanh(z / cap), as in Gemma 2: no logit is larger than the cap."""

    cap: float

    def __post_init__(self) -> None:
        if not 0 < self.cap < math.inf:
            raise ValueError(f"cap must be positive and finite, got {self.cap}")

    def __call__(self, logits: Tensor) -> Tensor:
        return self.cap * torch.tanh(logits / self.cap)

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        capped = logits.div_(self.cap).tanh_().mul_(self.cap)  # (R, V)
        return capped, 1 - (capped / self.cap).square_()
