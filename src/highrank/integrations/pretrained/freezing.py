"""Which weights of an upgraded model are trained: all, its head, or its head and last block."""

from typing import Any

from torch import nn


def train_head(model: Any) -> None:
    """Train what an upgrade has added, and nothing else.

    The output embedding and its bias stay as they are: they are the old layer's, and often the
    input embedding, too.
    """
    output = model.get_output_embeddings()
    model.requires_grad_(False)
    output.requires_grad_(True)
    for parameter in (output.weight, output.bias):
        if parameter is not None:
            parameter.requires_grad_(False)


def train_head_and_last_block(model: Any) -> None:
    """Train the head, as `train_head` does, and the last block of the body."""
    train_head(model)
    _blocks(model)[-1].requires_grad_(True)


def train_all(model: Any) -> None:
    """Train all weights again."""
    model.requires_grad_(True)


def _blocks(model: Any) -> nn.ModuleList:
    count = model.config.num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"the body must have a list of {count} blocks, got {type(model).__name__}")
