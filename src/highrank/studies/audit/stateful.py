"""Heads that look back, as the audit sees them: what predicts a token, as one vector of numbers.

Hidden states alone do not give such a head's log-probabilities: its features, made while a text
is read, do. They are kept as one vector a context, so that an audit can treat it as a hidden
state, and can compute log p from it again in float64. L tokens of a window, B windows.
"""

import copy
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from highrank.heads import Head
from highrank.models.language_model import LanguageModel

# Above it float32 does not have all integers, such as token ids.
LARGEST_INTEGER = 1 << 24


class FromVectors(Head):
    """The head with its features as vectors in place of hidden states.

    Args:
        model: with a head that looks back, in evaluation mode.
    """

    def __init__(self, model: LanguageModel) -> None:
        if model.head.vocab_size > LARGEST_INTEGER:
            found = f"{model.head.vocab_size:,}"
            raise ValueError(f"the head must have at most {LARGEST_INTEGER:,} tokens, got {found}")
        token = torch.zeros(1, 1, dtype=torch.long, device=_device(model))
        leaves, structure = tree_flatten(_features(model, token))
        shapes = [leaf.shape[2:] for leaf in leaves]
        super().__init__(sum(map(prod, shapes)), model.head.vocab_size)
        self.shapes = shapes
        # A function, as copying a structure warns.
        self.unflatten = lambda leaves: tree_unflatten(leaves, structure)
        self.are_integers = [not leaf.is_floating_point() for leaf in leaves]
        self.head = copy.deepcopy(model.head).cpu()

    def log_prob_from(self, features: Tensor) -> Tensor:
        parts = features.split([prod(shape) for shape in self.shapes], -1)
        leaves = [
            part.reshape(*features.shape[:-1], *shape).to(torch.long if is_integer else part.dtype)
            for part, shape, is_integer in zip(parts, self.shapes, self.are_integers, strict=True)
        ]
        return self.head.log_prob_from(self.unflatten(leaves))


def vectors_of(model: LanguageModel) -> Callable[[Tensor], Tensor]:
    """(B, L, size) of windows (B, L), each read from the initial state."""

    def vectors(windows: Tensor) -> Tensor:
        tokens = windows.T.to(_device(model))  # (L, B)
        leaves = tree_flatten(_features(model, tokens))[0]
        parts = [leaf.flatten(2).float() for leaf in leaves]  # (L, B, anything)
        return torch.cat(parts, -1).transpose(0, 1)

    return vectors


@torch.no_grad()
def _features(model: LanguageModel, tokens: Tensor) -> object:
    read = model.read(tokens, model.initial_state(tokens.shape[1]))
    return model.head.features(read.hidden, **read.past)


def _device(model: LanguageModel) -> torch.device:
    return next(model.parameters()).device
