"""Borrow a model's parameters and give them back."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Give the model its parameters back on exit, whatever happened inside."""
    saved = [p.detach().clone() for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(model.parameters(), saved, strict=True):
                p.copy_(old)


@contextmanager
def replaced(model: nn.Module, values: Iterable[Tensor]) -> Iterator[None]:
    """Run with other values in the parameters, such as an average; on exit, those from before."""
    with restored(model):
        with torch.no_grad():
            for p, value in zip(model.parameters(), values, strict=True):
                p.copy_(value)
        yield


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
