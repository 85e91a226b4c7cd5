"""Which contexts of a text are audited, and their hidden states.

A text is cut into stretches. Stretches that are spread evenly over it are read, each after the
stretch before it, so that every context but the text's first ones has a history.

M tokens of the text, T contexts, B windows, L tokens of a window, D hidden size.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Tokens that are read at once; the second half of them are contexts.
WINDOW = 128
WINDOWS_AT_ONCE = 8


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


def choose_windows(num_tokens: int, num_contexts: int, window: int = WINDOW) -> list[Window]:
    """Windows with at least `num_contexts` contexts, or all that a short text has.

    The last token ends no context: nothing follows it.
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
        chosen = [j * num_whole // wanted for j in range(wanted)]
    else:
        chosen = list(range(-(-last // step)))
    return [Window(max(0, (k - 1) * step), k * step, min((k + 1) * step, last)) for k in chosen]


@torch.no_grad()
def read_contexts(
    states: Callable[[Tensor], Tensor],
    tokens: Sequence[int] | NDArray[np.integer[Any]],
    num_contexts: int,
    *,
    window: int = WINDOW,
    on_progress: Callable[[float, str], None] | None = None,
) -> Contexts:
    """At most `num_contexts` contexts, evenly spread, in the order of the text.

    Args:
        states: hidden states (B, L, D) of windows (B, L), each read from the beginning.
        tokens: (M,).
        window: L.
    """
    windows = choose_windows(len(tokens), num_contexts, window)
    positions = np.concatenate([np.arange(w.first, w.end) for w in windows])
    kept = np.unique(np.linspace(0, len(positions) - 1, min(num_contexts, len(positions))).round())
    rows: list[Tensor] = []
    done = 0
    # Windows of one length go together; only the first and the last may be shorter.
    for _, group in groupby(windows, key=lambda w: w.end - w.start):
        alike = list(group)
        for start in range(0, len(alike), WINDOWS_AT_ONCE):
            batch = alike[start : start + WINDOWS_AT_ONCE]
            read = np.stack([np.asarray(tokens[w.start : w.end], dtype=np.int64) for w in batch])
            hidden = states(torch.from_numpy(read)).float().cpu()  # (B, L, D)
            rows += [h[w.first - w.start :] for h, w in zip(hidden, batch, strict=True)]
            done += len(batch)
            if on_progress is not None:
                on_progress(done / len(windows), f"reading: {done} of {len(windows)} windows")
    index = kept.astype(np.int64)
    return Contexts(positions[index], torch.cat(rows)[torch.from_numpy(index)])
