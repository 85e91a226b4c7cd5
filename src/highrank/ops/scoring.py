"""log p of given tokens in blocks of one size: the same number in training and in serving.

A matrix multiply rounds a row otherwise if there are more rows, or if it has another place among
them. Here every token is computed in a block of as many rows, filled up with zeros. N tokens,
D hidden size, V vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def log_probs_in_blocks(
    log_prob: Callable[[Tensor], Tensor], hidden: Tensor, ids: Tensor, block: int
) -> Tensor:
    """log p of each id (...), 0 where it is negative; the backward pass recomputes each block.

    Args:
        log_prob: of every token (n, V), from hidden states (n, D), row by row.
        hidden: (..., D).
        ids: (...).
        block: n, how many rows are computed at once.
    """
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    flat, index = hidden.reshape(-1, hidden.shape[-1]), ids.reshape(-1, 1)  # (N, D), (N, 1)
    missing = -len(index) % block
    rows, columns = F.pad(flat, (0, 0, 0, missing)), F.pad(index.clamp(min=0), (0, 0, 0, missing))

    def scored(rows: Tensor, columns: Tensor) -> Tensor:
        return log_prob(rows).gather(-1, columns).squeeze(-1)  # (n,)

    pairs = zip(rows.split(block), columns.split(block), strict=True)
    found = [checkpoint(scored, *pair, use_reentrant=False) for pair in pairs if len(pair[0])]
    scores = torch.cat(found)[: len(index)] if found else flat.new_empty(0)
    return scores.reshape(ids.shape).masked_fill(ids < 0, 0.0)
