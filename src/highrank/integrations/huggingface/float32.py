"""16-bit models that compute in float32: converted at once, or layer by layer if memory is short.

Many CPUs compute bfloat16 and float16 slowly, some not at all, and all round every layer's output.
Either way the hidden states are those of `model.float()`, bit for bit.
"""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from highrank.environment import free_memory

HALVES = (torch.bfloat16, torch.float16)


def compute_in_float32(model: nn.Module) -> None:
    """Convert all 16-bit weights if the copies fit into half of the free memory.

    Otherwise each layer is converted when it is called, and converted back after it.
    """
    free = free_memory()
    if free is None or 4 * sum(tensor.numel() for tensor in _halves(model)) <= free // 2:
        model.float()
    else:
        convert_by_layer(model)


def convert_by_layer(model: nn.Module) -> None:
    """Convert the elements of module lists while they run, and what is outside of these for good.

    Outside are embeddings and norms, whose precision the code around them may look at.
    """
    layers = list(_layers(model))
    inside = {id(tensor) for layer in layers for tensor in _halves(layer)}
    for layer in layers:
        _convert_in_calls(layer)
    for tensor in _halves(model):
        if id(tensor) not in inside:
            tensor.data = tensor.data.float()


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost lists."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)


def _convert_in_calls(layer: nn.Module) -> None:
    stored: list[tuple[Tensor, Tensor]] = []

    def convert(*_: object) -> None:
        for tensor in _halves(layer):
            stored.append((tensor, tensor.data))
            tensor.data = tensor.data.float()

    def restore(*_: object) -> None:
        while stored:
            tensor, data = stored.pop()
            tensor.data = data

    layer.register_forward_pre_hook(convert)
    layer.register_forward_hook(restore, always_call=True)


def _halves(module: nn.Module) -> Iterator[Tensor]:
    """16-bit parameters and buffers, each once."""
    tensors = chain(module.parameters(), module.buffers())
    return (tensor for tensor in tensors if tensor.dtype in HALVES)
