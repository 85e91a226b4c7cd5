"""Any language model as hidden states and a head, whatever it was made with.

`RunModel` is a run of ours, and `integrations.huggingface.reader.HuggingFaceModel` any causal model
of Hugging Face. Both have a tokenizer, and `load` a `Predictor`:

    hidden, past, state = predictor.read(tokens, predictor.initial_state(batch_size))
    log_p = predictor.head.log_prob(hidden, **past)

T time, B sequences, L tokens of a window, D hidden size, V vocabulary.
"""

import copy
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from highrank.data.corpus import Recipe
from highrank.data.text import tokenized_lines
from highrank.heads import Head
from highrank.models.backbone import State
from highrank.models.language_model import LanguageModel
from highrank.run import LoadedRun

# Above it float32 does not have all integers, such as token ids.
LARGEST_INTEGER = 1 << 24


class Predictor:
    """A causal language model in evaluation mode; what it lacks stays at its default."""

    architecture: str
    """As "AWD-LSTM" or "GPT2LMHeadModel"."""
    num_parameters: int
    """A tied embedding counts once."""
    head: Head
    """Predicts from hidden states as `read` returns them."""
    is_tied: bool
    """Whether the output embedding is the input embedding."""
    dtype: torch.dtype
    """In which the output embedding is stored."""
    scale: float = 1.0
    """What the logits are multiplied by, after the head's or before."""
    hidden_bound: float | None = None
    """No number of a hidden state is larger in magnitude; None where there is no such bound."""

    def initial_state(self, batch_size: int) -> State:
        """The state before the first token; dimension 1 is the batch."""
        raise NotImplementedError

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Any], State]:
        """Hidden states (T, B, D) of tokens (T, B), what else the head needs, the state after."""
        raise NotImplementedError

    @torch.no_grad()
    def hidden_states(self, windows: Tensor) -> Tensor:
        """(B, L, D) of windows (B, L), each read from the initial state."""
        return self.read(windows.T, self.initial_state(len(windows)))[0].transpose(0, 1)

    def without_state(self) -> "Predictor":
        """One whose head needs the hidden states only: itself, unless its head looks back."""
        return VectorPredictor(self) if self.head.is_stateful else self


class TextModel(Protocol):
    """A model that was found, with its tokenizer. Its weights are in memory after `load`."""

    name: str

    @property
    def max_window(self) -> int | None:
        """Longest input in tokens; None if there is no limit."""

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of a text."""

    def token(self, index: int) -> str:
        """A token as the tokenizer writes it."""

    def load(self, device: str = "cpu") -> Predictor:
        """The weights."""


class RunModel:
    """A run that was loaded."""

    max_window = None

    def __init__(self, run: LoadedRun) -> None:
        self.run, self.name = run, str(run.folder)

    def encode(self, text: str) -> list[int]:
        words = prompt_tokens(text, self.run.corpus.header.recipe)
        found: list[int] = self.run.vocabulary.encode(words).tolist()
        return found

    def token(self, index: int) -> str:
        return self.run.vocabulary.tokens[index]

    def load(self, device: str = "cpu") -> Predictor:
        """The run's own model, which is moved to the device."""
        return LanguageModelPredictor(self.run.model.to(device))


class LanguageModelPredictor(Predictor):
    """A model of ours.

    Args:
        model: in evaluation mode.
    """

    architecture = "AWD-LSTM"

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.head, self.is_tied = model, model.head, model.is_tied
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.dtype = next(model.head.parameters()).dtype
        self.hidden_bound = model.backbone.hidden_bound
        self.device = next(model.parameters()).device

    def initial_state(self, batch_size: int) -> State:
        return self.model.initial_state(batch_size)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Any], State]:
        found = self.model.read(tokens.to(self.device), state)
        return found.hidden, found.past, found.state


class VectorPredictor(Predictor):
    """A predictor with a head that looks back, as one whose head does not.

    Hidden states alone do not give such a head's log-probabilities: its features, made while a text
    is read, do. As one vector a context they take the place of hidden states, from which log p can
    be computed again in float64.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.num_parameters = predictor, predictor.num_parameters
        self.architecture, self.is_tied = predictor.architecture, predictor.is_tied
        self.dtype, self.scale = predictor.dtype, predictor.scale
        features = self._features(torch.zeros(1, 1, dtype=torch.long), self.initial_state(1))[0]
        self.head = VectorHead(predictor.head, features)

    def initial_state(self, batch_size: int) -> State:
        return self.predictor.initial_state(batch_size)

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Any], State]:
        features, state = self._features(tokens, state)
        parts = [leaf.flatten(2).float() for leaf in tree_flatten(features)[0]]
        return torch.cat(parts, -1), {}, state

    @torch.no_grad()
    def _features(self, tokens: Tensor, state: State) -> tuple[Any, State]:
        hidden, past, state = self.predictor.read(tokens, state)
        return self.predictor.head.features(hidden, **past), state


class VectorHead(Head):
    """A copy of a head with its features as vectors in place of hidden states.

    Args:
        features: of one token, (1, 1, …) each.
    """

    def __init__(self, head: Head, features: Any) -> None:
        if head.vocab_size > LARGEST_INTEGER:
            found = f"{head.vocab_size:,}"
            raise ValueError(f"the head must have at most {LARGEST_INTEGER:,} tokens, got {found}")
        leaves, structure = tree_flatten(features)
        shapes = [leaf.shape[2:] for leaf in leaves]
        super().__init__(sum(map(prod, shapes)), head.vocab_size)
        self.shapes = shapes
        # A function, as copying a structure warns.
        self.unflatten = lambda leaves: tree_unflatten(leaves, structure)
        self.are_integers = [not leaf.is_floating_point() for leaf in leaves]
        self.head = copy.deepcopy(head).cpu()

    def log_prob_from(self, features: Tensor) -> Tensor:
        parts = features.split([prod(shape) for shape in self.shapes], -1)
        leaves = [
            part.reshape(*features.shape[:-1], *shape).to(torch.long if is_integer else part.dtype)
            for part, shape, is_integer in zip(parts, self.shapes, self.are_integers, strict=True)
        ]
        return self.head.log_prob_from(self.unflatten(leaves))


def prompt_tokens(prompt: str, recipe: Recipe) -> list[str]:
    """The tokens of a prompt; its last line has ended only if the prompt ends with a newline."""
    lines = [list(line) for line in tokenized_lines(prompt, recipe)]
    # A line without tokens may have no end.
    if lines and lines[-1] and not prompt.endswith("\n"):
        lines[-1].pop()
    return list(chain.from_iterable(lines))
