"""Tokens and states that a head looks back to, and which dimension of them is time.

T time, B sequences, D hidden size.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from highrank.ops.tracing import in_torch_func, is_static

if TYPE_CHECKING:
    from highrank.heads.bases.head import Head

# Arguments of a head that looks back, besides the hidden states.
PAST = ("tokens", "state", "position")

# So many tokens do not agree by chance.
NUM_WITNESSES = 8


def check_names(head: "Head", past: Mapping[str, Any]) -> None:
    """Raise for arguments that mean nothing to the head."""
    for name, value in past.items():
        if name not in PAST:
            raise TypeError(f"arguments besides hidden must be of {', '.join(PAST)}, got {name}")
        if value is not None and not head.is_stateful:
            kind = type(head).__name__
            raise ValueError(
                f"{name} must be left out for {kind}, which does not look back, got one"
            )


def check_past(head: "Head", hidden: Tensor, tokens: Tensor | None, state: Any) -> None:
    """Raise unless tokens and state, where they are given, fit hidden states of a window."""
    first, (leading, batch) = head.batch_first, ("B, T", 0) if head.batch_first else ("T, B", 1)
    order = f"({leading}, D) with batch_first={first}"
    if hidden.dim() != 3:
        raise ValueError(f"hidden must be {order}, got {tuple(hidden.shape)}")
    if tokens is not None and tokens.shape != hidden.shape[:-1]:
        raise ValueError(
            f"hidden must be {order} and tokens ({leading}), got {tuple(hidden.shape)} and "
            f"{tuple(tokens.shape)}"
        )
    for leaf in tree_leaves(state):
        if isinstance(leaf, Tensor) and leaf.shape[1] != hidden.shape[batch]:
            raise ValueError(
                f"hidden must be {order} and have the {leaf.shape[1]} sequences of the state, "
                f"got {tuple(hidden.shape)}"
            )


def check_time(head: "Head", tokens: Any, target: Any, ignore_index: int) -> None:
    """Raise where targets are the next tokens along the batch's dimension, and not along time's."""
    if not isinstance(tokens, Tensor) or not isinstance(target, Tensor) or in_torch_func():
        return
    if tokens.dim() != 2 or tokens.shape != target.shape or is_static(tokens):
        return
    first = head.batch_first
    time, batch = int(first), int(not first)
    along_time, across = (
        _agreement(tokens.movedim(dim, 0), target.movedim(dim, 0), ignore_index)
        for dim in (time, batch)
    )
    if across.all() and len(across) >= NUM_WITNESSES and not along_time.all():
        want = "(B, T)" if first else "(T, B)"
        raise ValueError(
            f"tokens and target must be {want} with batch_first={first}, got {tuple(tokens.shape)} "
            f"whose next tokens are those of batch_first={not first}"
        )


def check_shift(head: "Head", hidden: Tensor, shift: int) -> None:
    """Raise where targets would be shifted along the batch: their last dimension must be time."""
    if shift and hidden.dim() > 2 and not head.batch_first:
        raise ValueError(
            f"shift must be 0 for hidden states (T, B, D), got {shift}: it is along the last "
            "dimension of targets, which is time for a head with batch_first=True"
        )


def _agreement(tokens: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Whether each target is the token that comes next along dimension 0."""
    return (target[:-1] == tokens[1:])[target[:-1] != ignore_index]
