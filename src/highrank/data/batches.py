"""A corpus as batches: parallel streams of tokens, cut into windows for truncated BPTT.

T time, B streams, the batch size.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MIN_BPTT = 5


def draw_bptt(
    bptt: int, *, std: float, max_delta: int, half_probability: float, generator: torch.Generator
) -> int:
    """The length of a window of truncated BPTT: Merity et al. (2018), section 5.

    Normal around `bptt` or, with `half_probability`, around half of it; at least `MIN_BPTT` and at
    most bptt + max_delta. Without a deviation it is `bptt`.
    """
    if std == 0:
        return bptt
    is_half = torch.rand((), generator=generator).item() < half_probability
    mean = bptt / 2 if is_half else float(bptt)
    noise = std * torch.randn((), generator=generator).item()
    return min(max(MIN_BPTT, int(mean + noise)), bptt + max_delta)


class Streams:
    """Tokens as B parallel streams (T, B): contiguous pieces of the corpus, the remainder cut off.

    Rows are copied when they are read, so that the corpus may stay on disk, however long.
    """

    def __init__(
        self,
        tokens: NDArray[np.integer],
        batch_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        length = len(tokens) // batch_size
        if length < 2:
            raise ValueError(
                f"the text must have at least two tokens for each of {batch_size} streams, "
                f"got {len(tokens)} tokens"
            )
        self.batch_size, self.device = batch_size, device
        self._pieces = tokens[: length * batch_size].reshape(batch_size, length)

    def __len__(self) -> int:
        """T."""
        return self._pieces.shape[1]

    def __getitem__(self, rows: slice) -> Tensor:
        """Token ids of these rows, (n, B)."""
        window = self._pieces[:, rows].T.astype(np.int64, order="C")
        return torch.from_numpy(window).to(self.device)


def windows(num_rows: int, window: int) -> Iterator[tuple[int, int]]:
    """Start and length of consecutive windows that predict each row but the first once."""
    for start in range(0, num_rows - 1, window):
        yield start, min(window, num_rows - 1 - start)
