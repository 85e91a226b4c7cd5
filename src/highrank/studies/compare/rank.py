"""The rank of what a trained model predicts, of heads that look back, too."""

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.log_probs import matrix_log_probs
from highrank.analysis.rank import measure_ranks
from highrank.analysis.svd import singular_values
from highrank.models.language_model import LanguageModel

NUM_CONTEXTS, WINDOW = 500, 100
KEYS = ("numerical_rank_float32", "effective_rank_1e-2", "effective_rank_1e-3")


@torch.no_grad()
def effective_ranks(
    model: LanguageModel, tokens: NDArray[np.integer], num_contexts: int = NUM_CONTEXTS
) -> dict[str, float | None]:
    """Numerical and ε-effective ranks of log p after the first tokens of a split.

    Args:
        model: in evaluation mode.
    """
    device = next(model.parameters()).device
    first = torch.from_numpy(tokens[:num_contexts].astype(np.int64))[:, None].to(device)  # (T, 1)
    state, rows = model.initial_state(1), []
    for window in first.split(WINDOW):
        read = model.read(window, state)
        state = read.state
        rows.append(model.head.log_prob(read.hidden, **read.past)[:, 0])  # (n, V)
    matrix = torch.cat(rows).float().cpu()  # (T, V)
    # A forbidden token has no finite logarithm.
    matrix = matrix[:, matrix.isfinite().all(0)]
    spectrum = singular_values(matrix_log_probs(matrix))[-1]
    found = measure_ranks(spectrum)
    return {"num_contexts": len(matrix)} | {key: found[key] for key in KEYS}
