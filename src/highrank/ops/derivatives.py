"""Gradients that can be differentiated in turn, of functions that have a fast backward pass."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def differentiable_gradients(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    wanted: Sequence[bool],
    upstream: Tensor,
) -> list[Tensor | None]:
    """The wanted gradients of Σ upstream · function(*tensors), by autograd, with a graph.

    A backward pass calls it if gradients are enabled there: somebody will differentiate it.

    Args:
        function: the definition, slow or not, of ordinary operators.
    """
    # Nodes of their own: one of the tensors may have been made from another.
    own = [None if x is None else x.view_as(x) for x in tensors]
    leaves = [x for x, want in zip(own, wanted, strict=True) if x is not None and want]
    found = iter(
        torch.autograd.grad(function(*own), leaves, upstream, create_graph=True, allow_unused=True)
    )
    pairs = zip(own, wanted, strict=True)
    return [next(found) if x is not None and want else None for x, want in pairs]
