"""The loss of upgraded models: what a caller asks of it, on its way to the output layer.

Architectures of transformers call their output layer with hidden states alone. What else a loss
needs is kept for the thread that is in the call: B texts, L tokens, M targets of a token.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from highrank.ops.loss import LossOptions, Target

# Options of a head's loss that a caller of a model may give, and others, which the model decides.
OPTIONS = ("class_weight", "token_weight", "label_smoothing", "z_loss", "backend", "chunk_bytes")
KNOWN = (*OPTIONS, "ignore_index")
DECIDED = (*(set(LossOptions.__annotations__) - set(OPTIONS)), "reduction", "also")


class LossCall(NamedTuple):
    """Labels (B, L), or ids and probabilities (B, L, M) of soft ones, and options of the loss."""

    labels: Target
    options: dict[str, Any]

    def for_states(
        self, hidden: Tensor, ignore_index: int, is_shifted: bool
    ) -> tuple[Target, dict[str, Any]]:
        """The target of each hidden state (..., D), and the options of the head's loss.

        Args:
            is_shifted: whether the label of a position already is the next token.
        """

        def moved(x: Tensor, value: float, is_soft: bool = False) -> Tensor:
            if not is_shifted:
                padding = (0, 0, 0, 1) if is_soft else (0, 1)
                x = F.pad(x, padding, value=value).narrow(1, 1, x.shape[1])
            shape = (*hidden.shape[:-1], x.shape[-1]) if is_soft else hidden.shape[:-1]
            # The same number of labels in another order would be taken, too.
            if x.dim() == len(shape) and x.shape != shape:
                raise ValueError(
                    f"labels and token_weight must be {tuple(shape)}, got {tuple(x.shape)}"
                )
            return x.to(hidden.device).reshape(shape)

        options = dict(self.options)
        if (weight := options.get("token_weight")) is not None:
            options["token_weight"] = moved(weight, 0.0)
        if isinstance(self.labels, tuple):
            ids, probabilities = self.labels
            return (moved(ids, ignore_index, True), moved(probabilities, 0.0, True)), options
        return moved(self.labels, ignore_index), options


class _Current(threading.local):
    """The call that a thread is in. With a loss, output layers return their hidden states."""

    loss: LossCall | None = None


CURRENT = _Current()


@contextmanager
def loss_call(call: LossCall) -> Iterator[None]:
    before, CURRENT.loss = CURRENT.loss, call
    try:
        yield
    finally:
        CURRENT.loss = before


def taken_options(kwargs: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Take the options of the loss out of the arguments of a model.

    transformers ignores arguments that it does not know. Those that look like an option are errors.

    Args:
        names: arguments that the architecture knows.
    """
    for name in kwargs:
        if name in KNOWN or name in names:
            continue
        is_part = any(name in option for option in OPTIONS)
        if name in DECIDED or is_part or get_close_matches(name, KNOWN, cutoff=0.8):
            raise ValueError(
                f"an option of the loss must be one of {', '.join(KNOWN)}, got {name!r}"
            )
    return {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
