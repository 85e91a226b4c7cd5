"""How fast this machine trains a model, by training it for a moment."""

from collections.abc import Callable
from typing import NamedTuple

from highrank.build import CheckedRun, build_batches, build_model
from highrank.data.batches import Batch, Batches
from highrank.training.budget import read_clocks, seconds_since
from highrank.training.trainer import Trainer

# Windows are timed for so long, and so many at least; the first are not counted.
TIMED_SECONDS, NUM_WINDOWS, NUM_FIRST = 1.5, 3, 2
SMALL_PART = 0.02


class Timed(NamedTuple):
    tokens: int
    seconds: float
    cpu_seconds: float
    """Of all threads."""
    thread_seconds: float
    """CPU time of the thread that trains: on a CPU, what it takes where nothing else runs."""


def time_training(
    trainer: Trainer, next_of: Callable[[], Batch], cpu_seconds: float | None = None
) -> Timed:
    """Train for a moment of CPU time: so many seconds, or `TIMED_SECONDS`.

    Args:
        next_of: returns one batch after the other.
    """
    cpu_seconds = TIMED_SECONDS if cpu_seconds is None else cpu_seconds
    for _ in range(NUM_FIRST):
        trainer.step(next_of())
    start, tokens, count = read_clocks(), 0, 0
    while count < NUM_WINDOWS or seconds_since(start)[1] < cpu_seconds:
        batch = next_of()
        trainer.step(batch)
        tokens += batch.num_targets
        count += 1
    wall, cpu, thread = (max(seconds, 1e-9) for seconds in seconds_since(start))
    return Timed(tokens, wall, cpu, thread)


def tokens_per_second(run: CheckedRun, budget: float) -> float:
    """Of a fresh model of the run, by the clock: with the threads, and the load, that there are.

    Args:
        budget: seconds, of which this takes a small part.
    """
    config, corpus = run.config, run.corpus
    model = build_model(config, len(corpus.vocabulary), corpus.token_counts).to(run.device)
    eos = corpus.vocabulary.eos
    batches = build_batches(config, corpus.split("train"), run.device, sentence_end=eos)

    def next_of() -> Batch:
        # Components have counted nothing yet: to them the split is any text.
        return next_batch(batches)._replace(position=None)

    seconds = min(TIMED_SECONDS, SMALL_PART * budget)
    found = time_training(Trainer(model, config.train), next_of, seconds)
    return found.tokens / found.seconds


def next_batch(batches: Batches) -> Batch:
    """A short corpus is over soon, and begins again."""
    if batches.is_epoch_over:
        batches.start_epoch()
    return next(batches)
