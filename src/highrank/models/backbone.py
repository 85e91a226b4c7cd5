"""Base of the backbones: tokens and a state in, hidden states and the new state out.

A state is any pytree of tensors whose dimension 1 is the batch: it may be empty, and its tensors
may grow, but it keeps its structure. T time, B sequences, D hidden size.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Required, TypedDict

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.ops.dropout import dropout_mask, locked_dropout
from highrank.ops.precision import at_least_float32

State = Any


class BackboneOutput(NamedTuple):
    hidden: Tensor
    """(T, B, D), after the last dropout: what feeds the head."""
    state: State
    layers: tuple[Tensor, ...]
    """The embeddings and each layer's hidden states, (T, B, size), after their dropout."""
    raw: Tensor | None = None
    """(T, B, D), before the last dropout, for networks whose penalty needs it."""


class ParameterGroup(TypedDict, total=False):
    """A group of an optimiser's parameters."""

    params: Required[list[nn.Parameter]]
    weight_decay: float
    """Instead of the stage's."""
    lr_scale: float
    """Factor of the stage's learning rate; 1 if there is none."""


class Backbone(nn.Module):
    """Base of all backbones: what they must have, and defaults for what most share.

    A subclass sets `embedding`, `embedding_range` and `layer_sizes`, and writes `forward` and, if
    it carries anything from window to window, `initial_state`.
    """

    title: str
    """The network's name in tables and sentences."""
    embedding: nn.Embedding | AdaptiveEmbedding
    embedding_range: float
    """Embeddings start uniform in ± this."""
    layer_sizes: tuple[int, ...]
    """Size of the embeddings and of each layer's hidden states; the last is D."""
    context_length: int | None = None
    """Tokens that a prediction can depend on; None for a state that remembers without end."""
    embedding_lr_scale: float = 1.0
    """Factor of the embeddings' learning rate."""
    embedding_dropout: float = 0.0
    input_dropout: float = 0.0
    activation_penalty: float = 0.0
    temporal_penalty: float = 0.0

    @property
    def hidden_bound(self) -> float | None:
        """No number of a hidden state is larger in magnitude; None where there is no such bound."""
        return None

    @property
    def hidden_norm(self) -> float:
        """About the 2-norm of a fresh network's hidden states; 1 where it is at most that."""
        return 1.0

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token; empty unless a network has one."""
        return ()

    def forward(self, tokens: Tensor, state: State) -> BackboneOutput:
        """Read tokens (T, B), starting in a state."""
        raise NotImplementedError

    def check_numbers(self) -> None:
        """Raise unless dropouts are fractions, penalties at least 0 and the range positive."""
        for name, value in vars(self).items():
            if name.endswith("_dropout") and not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
            if name.endswith("_penalty") and not value >= 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        for name in ("embedding_range", "embedding_scale", "embedding_lr_scale"):
            if not getattr(self, name, 1.0) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings (T, B, E), in training without whole tokens and with locked dropout."""
        keep = 1.0 if self.training else 0.0
        x = embed_with_dropout(self.embedding, tokens, keep * self.embedding_dropout)
        return locked_dropout(x, keep * self.input_dropout, shared_dim=0)

    def reset_embedding(self) -> None:
        """Start embeddings uniform in ± `embedding_range`."""
        if isinstance(self.embedding, AdaptiveEmbedding):
            self.embedding.reset_parameters()
        else:
            nn.init.uniform_(self.embedding.weight, -self.embedding_range, self.embedding_range)

    def penalty(self, out: BackboneOutput) -> Tensor | float:
        """The term that training adds to the loss of a window: AR and TAR.

        α · mean(hidden²) + β · mean((raw[t + 1] - raw[t])²): Merity, McCann and Socher (2017),
        arXiv 1708.01009.
        """
        penalty: Tensor | float = 0.0
        if self.activation_penalty:
            hidden = out.hidden.to(at_least_float32(out.hidden.dtype))
            penalty = self.activation_penalty * hidden.square().mean()
        if self.temporal_penalty and out.raw is not None and len(out.raw) > 1:
            steps = (out.raw[1:] - out.raw[:-1]).to(at_least_float32(out.raw.dtype))
            penalty = penalty + self.temporal_penalty * steps.square().mean()
        return penalty

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        """The optimiser's parameter groups of a model with this backbone, its head included.

        Weight decay is on matrices only, not on biases and norms.
        """
        groups = decay_matrices_only(model)
        if self.embedding_lr_scale == 1:
            return groups
        own = {id(p) for p in self.embedding.parameters()}
        matrices, vectors = groups
        others = [p for p in matrices["params"] if id(p) not in own]
        embeddings = [p for p in matrices["params"] if id(p) in own]
        scaled = ParameterGroup(params=embeddings, lr_scale=self.embedding_lr_scale)
        return [ParameterGroup(params=others), vectors, scaled]


def projection(embedding_size: int, hidden_size: int, **tensors: Any) -> nn.Module:
    """A linear layer from embeddings to hidden states, or nothing where they are of one size."""
    if embedding_size == hidden_size:
        return nn.Identity()
    return nn.Linear(embedding_size, hidden_size, bias=False, **tensors)


def embed_with_dropout(
    embedding: nn.Embedding | AdaptiveEmbedding, tokens: Tensor, p: float
) -> Tensor:
    """Embed, with whole tokens left out: a dropped token is zero wherever it occurs."""
    found: Tensor = embedding(tokens)
    if p == 0:
        return found
    mask = dropout_mask((embedding.num_embeddings, 1), p, found)
    return found * mask[tokens]


def like_parameters(module: nn.Module) -> dict[str, Any]:
    """Device and dtype of its parameters, for tensors that are whole where these are sharded."""
    parameter = next(module.parameters())
    return {"device": parameter.device, "dtype": parameter.dtype}


def decay_matrices_only(model: nn.Module) -> list[ParameterGroup]:
    """Two groups: matrices, and vectors without weight decay."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with a function applied to each of its tensors."""
    return tree_map(function, state)


def joined(states: Sequence[State]) -> State:
    """The states of parts of a batch as one."""
    if len(states) == 1:
        return states[0]
    return tree_map(lambda *tensors: torch.cat(tensors, 1), *states)


def restored_state(saved: Sequence[Tensor], like: State, device: torch.device) -> State:
    """A state from its tensors, with the structure of `like`; these may have grown."""
    wanted, found = len(tree_leaves(like)), len(saved)
    if found != wanted:
        raise ValueError(f"a state must have {wanted} tensors, got {found}")
    return tree_unflatten([tensor.to(device) for tensor in saved], tree_structure(like))


def tensors_of(state: State) -> list[Tensor]:
    """The tensors of a state, from which `restored_state` makes it again."""
    return tree_leaves(state)
