"""A text as blocks of token ids: those to train on, in a random order, and those held out.

B blocks of a batch, L tokens of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.data.text import Span, read_text, split_text
from highrank.integrations.huggingface.reader import HuggingFaceModel

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True)
class Split:
    ids: NDArray[np.int32]
    """(N,), in the order of the text."""
    num_bytes: int
    """Of its text, in UTF-8."""

    @property
    def sha256(self) -> str:
        """Of the token ids."""
        return sha256(self.ids.astype("<i4").tobytes()).hexdigest()


def read_splits(model: HuggingFaceModel, path: Path, on_progress: OnProgress) -> dict[str, Split]:
    """train and valid of a text or a folder, as `highrank data prepare` splits it.

    The test split is left for those who want to choose between results by valid.
    """
    spans, _ = split_text(path)
    splits = {}
    for name in ("train", "valid"):
        found, num_bytes = [], 0
        for text in _blocks(spans[name]):
            found.append(np.array(model.encode(text), dtype=np.int32))
            num_bytes += len(text.encode())
            on_progress(0.0, f"reading the {name} split, {num_bytes:,} bytes")
        splits[name] = Split(np.concatenate([np.empty(0, np.int32), *found]), num_bytes)
    return splits


def _blocks(spans: Sequence[Span]) -> list[str]:
    return [text for span in spans for text, _ in read_text(span)]


class Blocks:
    """Batches of blocks (B, L) in an order that the seed decides, epoch after epoch.

    Args:
        prefix: ids that every block begins with, part of its L tokens.
    """

    def __init__(self, ids: NDArray[np.int32], length: int, prefix: Sequence[int] = ()) -> None:
        size = length - len(prefix)
        if size < 2:
            raise ValueError(f"block-length must be at least {2 + len(prefix)}, got {length}")
        self.count, self.prefix = len(ids) // size, len(prefix)
        rows = torch.from_numpy(ids[: self.count * size].astype(np.int64)).view(-1, size)
        start = torch.tensor(list(prefix), dtype=torch.int64).expand(len(rows), -1)
        self.rows = torch.cat([start, rows], 1)  # (count, L)

    @property
    def num_predicted(self) -> int:
        """Tokens of a block that are predicted from those before them."""
        return self.rows.shape[1] - max(1, self.prefix)

    def labels(self, batch: Tensor) -> Tensor:
        """As transformers wants them: the tokens themselves, but for the prefix."""
        labels = batch.clone()
        labels[:, : self.prefix] = -100
        return labels

    def batch(self, step: int, batch_size: int, seed: int) -> Tensor:
        """The (B, L) of a step, from 0; every block once in each epoch."""
        places = range(step * batch_size, (step + 1) * batch_size)
        orders = {place // self.count: None for place in places}
        drawn = {e: np.random.default_rng([seed, e]).permutation(self.count) for e in orders}
        return self.rows[[int(drawn[p // self.count][p % self.count]) for p in places]]
