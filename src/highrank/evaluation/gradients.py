"""Gradients of a reading's loss that leave no trace in the model: no .grad, no mode, no flags."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from highrank.evaluation.scored import Read, Reading
from highrank.models.dropout import without_dropout


def chosen(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """The parameters with these names, or of the modules with these names; all if None.

    A tied parameter is chosen by any of its names, and appears under the first.
    """
    parameters = dict(model.named_parameters())
    if names is None:
        return parameters
    found: set[nn.Parameter] = set()
    for name in names:
        of_name = {
            parameter
            for full_name, parameter in model.named_parameters(remove_duplicate=False)
            if f"{full_name}.".startswith(f"{name}.")
        }
        if not of_name:
            known = ", ".join(child for child, _ in model.named_children())
            raise ValueError(
                f"adapt must name parameters, or modules such as {known}, got {name!r}"
            )
        found |= of_name
    return {name: parameter for name, parameter in parameters.items() if parameter in found}


@contextmanager
def differentiable(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Everything random off, and gradients for these parameters only; on exit, as before."""
    saved = [(p, p.requires_grad) for p in model.parameters()]
    with without_dropout(model):
        try:
            model.requires_grad_(False)
            for p in parameters:
                p.requires_grad_(True)
            yield
        finally:
            for p, requires_grad in saved:
                p.requires_grad_(requires_grad)


def read_to_learn(read: Read, words: Tensor, target: Tensor, state: Any) -> Reading:
    """A reading with a graph behind its loss, and a state without one."""
    with torch.enable_grad(), _without_cudnn():
        reading = read(words, target, state)
    return reading._replace(state=tree_map_only(Tensor, Tensor.detach, reading.state))


def gradients(reading: Reading, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
    """Of the loss; zeros for a parameter that it does not depend on."""
    return torch.autograd.grad(reading.loss, parameters, materialize_grads=True)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    # Its recurrent layers have no backward pass in evaluation mode; torch's own have.
    was_enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = was_enabled
