"""An n-gram model alone, as a baseline: the same training split, and the same tokens."""

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from highrank import ngram
from highrank.evaluation.result import Dataset, Result
from highrank.evaluation.static import Evaluation, as_the_original_divides
from highrank.run.loading import LoadedRun

ORDER = 5


def evaluate_ngram(
    table: ngram.Table, tokens: NDArray[np.integer], batch_size: int = 1
) -> Evaluation:
    """Mean loss of the tokens that static evaluation predicts, in as many streams."""
    length = len(tokens) // batch_size
    rows = np.asarray(tokens[: length * batch_size], dtype=np.int64).reshape(batch_size, length).T
    found = table.log_prob_of(table.contexts(rows[:-1]), rows[1:])  # (T - 1, B)
    return Evaluation(-float(found.mean()), found.size)


def ngram_result(loaded: LoadedRun, dataset: Dataset, static: Result) -> Result:
    """The result of an n-gram model in place of the run's, which was evaluated statically."""
    start, batch_size = time.monotonic(), static.settings["batch_size"]
    table = ngram.build(loaded.corpus.split("train"), len(loaded.vocabulary), ORDER).table
    found = evaluate_ngram(table, dataset.tokens, batch_size)
    if static.settings["compat"] is not None:
        found = as_the_original_divides(found, batch_size)
    return replace(
        static,
        value=found.perplexity,
        nats=found.nats,
        bits=found.bits,
        bits_per_byte=dataset.bits_per(dataset.num_bytes, found.bits),
        bits_per_char=dataset.bits_per(dataset.num_chars, found.bits),
        num_tokens=found.num_tokens,
        method=f"{ORDER}-gram",
        settings={**static.settings, "order": ORDER},
        # It is not the run's model.
        model_sha256="",
        check=None,
        seconds=time.monotonic() - start,
    )
