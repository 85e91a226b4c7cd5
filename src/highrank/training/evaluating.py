"""Static evaluation by all processes that train a model: each reads some of the text."""

import numpy as np
from numpy.typing import NDArray

from highrank.evaluation.static import Evaluation, evaluate
from highrank.models.language_model import LanguageModel
from highrank.progress import OnProgress
from highrank.training.world import World


def evaluate_in(
    world: World,
    model: LanguageModel,
    tokens: NDArray[np.integer],
    batch_size: int,
    on_progress: OnProgress | None = None,
    sentence_end: int | None = None,
) -> Evaluation:
    """Mean loss of the tokens, the same in all processes.

    Args:
        on_progress: is called as often in every process.
        sentence_end: token id of `<eos>` if every line is alone.
    """
    columns, counts = world.streams(batch_size if sentence_end is None else None)
    found = evaluate(
        model,
        tokens,
        batch_size,
        on_progress=on_progress,
        columns=columns,
        sentence_end=sentence_end,
    )
    if world.size == 1:
        return found
    num_tokens = found.num_tokens if counts else 0
    total, count = world.sum(found.nats * num_tokens), world.sum(num_tokens)
    return Evaluation(total / count, int(count))
