"""What a backbone is: tokens and a state in, hidden states and the new state out.

A state is any pytree of tensors whose dimension 1 is the batch. T time, B sequences, D hidden size.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from highrank.models.adaptive_embedding import AdaptiveEmbedding

State = Any


class BackboneOutput(NamedTuple):
    hidden: Tensor
    """(T, B, D), after the last dropout: what feeds the head and the activation penalty."""
    raw: Tensor
    """(T, B, D), before it: what the temporal activation penalty compares."""
    state: State
    layers: tuple[Tensor, ...]
    """The embeddings and each layer's hidden states, (T, B, size), after their dropout."""


class Backbone(Protocol):
    """An `nn.Module` with an input embedding."""

    embedding: nn.Embedding | AdaptiveEmbedding
    layer_sizes: tuple[int, ...]
    """Size of the embeddings and of each layer's hidden states; the last is D."""
    hidden_bound: float | None
    """No number of a hidden state is larger in magnitude; None where there is no such bound."""

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token."""

    def __call__(self, tokens: Tensor, state: State) -> BackboneOutput:
        """Read tokens (T, B), starting in a state."""


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with a function applied to each of its tensors."""
    return tree_map(function, state)


def joined(states: Sequence[State]) -> State:
    """The states of parts of a batch as one."""
    if len(states) == 1:
        return states[0]
    return tree_map(lambda *tensors: torch.cat(tensors, 1), *states)


def restored_state(saved: Any, like: State, device: torch.device) -> State:
    """A state that was saved, whatever containers it came back in, with the structure of `like`."""
    leaves = [tensor.to(device) for tensor in tree_leaves(saved)]
    return tree_unflatten(leaves, tree_structure(like))


def tensors_of(state: State) -> list[Tensor]:
    """What `restored_state` needs, as plain data."""
    return tree_leaves(state)
