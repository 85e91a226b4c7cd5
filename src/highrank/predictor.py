"""Any language model as hidden states and a head, whatever it was made with.

`RunModel` is a run of ours, and `integrations.huggingface.reader.HuggingFaceModel` any causal model
of Hugging Face. Both have a tokenizer, and `load` a `Predictor`:

    hidden, past, state = predictor.read(tokens, predictor.initial_state(batch_size))
    log_p = predictor.head.log_prob(hidden, **past)

T time or contexts, B sequences or windows, L tokens of a window, M of a text, D hidden size.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from highrank.data.text import tokenized_lines
from highrank.heads import Head
from highrank.progress import OnProgress

if TYPE_CHECKING:
    from highrank.data.corpus import Recipe
    from highrank.models.language_model import LanguageModel
    from highrank.run.loading import LoadedRun

# Tokens that are read at once; the second half of them end contexts.
WINDOW = 128
WINDOWS_AT_ONCE = 8
# Tokens that a head that looks back reads before a context.
LONG_HISTORY = 512
# Above it float32 does not have all integers, such as token ids.
LARGEST_INTEGER = 1 << 24

Tokens = Sequence[int] | NDArray[np.integer[Any]]
# A pytree of tensors, as `highrank.models.backbone` has it.
State = Any


class Predictor:
    """A causal language model in evaluation mode; what it lacks stays at its default."""

    architecture: str
    """Name of the network, as "AWD-LSTM" or "GPT2LMHeadModel"."""
    num_parameters: int
    """A tied embedding counts once."""
    head: Head
    """Predicts from hidden states as `read` returns them."""
    is_tied: bool
    """Whether the output embedding is the input embedding."""
    dtype: torch.dtype
    """Precision in which the output embedding is stored."""
    scale: float = 1.0
    """Factor of the logits; a head that is given hidden states · scale does not have it again."""
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
        """The model with its weights."""


class RunModel:
    """A run that was loaded."""

    max_window = None

    def __init__(self, run: "LoadedRun") -> None:
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

    def __init__(self, model: "LanguageModel") -> None:
        self.architecture = model.backbone.title
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


class Window(NamedTuple):
    start: int
    """Where reading begins."""
    first: int
    """The first token that ends a context."""
    end: int
    """Behind the last one."""


class Contexts(NamedTuple):
    positions: NDArray[np.int64]
    """(T,), ascending: a context ends with the token at its position."""
    hidden: Tensor
    """(T, D), float32."""


def choose_windows(
    num_tokens: int, num_contexts: int, window: int = WINDOW, history: int | None = None
) -> list[Window]:
    """Windows with at least `num_contexts` contexts, or all that a short text has.

    They are spread evenly over the text. Each is read after the half window before it, so that
    every context but the text's first ones has a history; a longer one changes no context. The last
    token ends no context: nothing follows it.
    """
    if num_tokens < 3:
        raise ValueError(f"the text must have at least 3 tokens, got {num_tokens}")
    if num_contexts < 2:
        raise ValueError(f"contexts must be at least 2, got {num_contexts}")
    if window < 2:
        raise ValueError(f"window must be at least 2, got {window}")
    step, last = window // 2, num_tokens - 1
    num_whole, wanted = last // step, -(-num_contexts // step)
    if wanted <= num_whole:
        steps = [j * num_whole // wanted for j in range(wanted)]
    else:
        steps = list(range(-(-last // step)))
    history = step if history is None else history
    return [Window(max(0, k * step - history), k * step, min((k + 1) * step, last)) for k in steps]


@torch.no_grad()
def read_contexts(
    hidden_states: Callable[[Tensor], Tensor],
    tokens: Tokens,
    num_contexts: int,
    *,
    window: int = WINDOW,
    history: int | None = None,
    on_progress: OnProgress | None = None,
) -> Contexts:
    """At most `num_contexts` contexts, evenly spread, in the order of the text.

    Args:
        hidden_states: (B, L, D) of windows (B, L), each read from the initial state.
        tokens: (M,).
        window: L.
        history: tokens before a window's contexts; half of the window if None.
    """
    windows = choose_windows(len(tokens), num_contexts, window, history)
    positions = np.concatenate([np.arange(w.first, w.end) for w in windows])
    kept = np.unique(np.linspace(0, len(positions) - 1, min(num_contexts, len(positions))).round())
    rows: list[Tensor] = []
    done = 0
    # Windows of one length go together; only the first ones and the last may be shorter.
    for _, group in groupby(windows, key=lambda w: w.end - w.start):
        alike = list(group)
        for start in range(0, len(alike), WINDOWS_AT_ONCE):
            batch = alike[start : start + WINDOWS_AT_ONCE]
            read = np.stack([np.asarray(tokens[w.start : w.end], dtype=np.int64) for w in batch])
            hidden = hidden_states(torch.from_numpy(read)).float().cpu()  # (B, L, D)
            rows += [h[w.first - w.start :] for h, w in zip(hidden, batch, strict=True)]
            done += len(batch)
            if on_progress is not None:
                on_progress(done / len(windows), f"{done} of {len(windows)} windows")
    index = kept.astype(np.int64)
    return Contexts(positions[index], torch.cat(rows)[torch.from_numpy(index)])


def prompt_tokens(prompt: str, recipe: "Recipe") -> list[str]:
    """The tokens of a prompt; its last line has ended only if the prompt ends with a newline."""
    lines = [list(line) for line in tokenized_lines(prompt, recipe)]
    # A line without tokens may have no end.
    if lines and lines[-1] and not prompt.endswith("\n"):
        lines[-1].pop()
    return list(chain.from_iterable(lines))
