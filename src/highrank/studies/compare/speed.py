"""Speed of a variant in training and evaluation, measured on a few windows before the plan."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from highrank.build import build_model
from highrank.data.batches import Streams
from highrank.data.corpus import CorpusLike
from highrank.studies.compare.variant import Variant
from highrank.training.budget import seconds_of_test
from highrank.training.trainer import Trainer

# Windows are timed for so long, and so many at least; the first are not counted.
SECONDS, NUM_WINDOWS, NUM_FIRST = 1.5, 3, 2
# Seconds of rank and components at the end of a run: so many, and for each token of the vocabulary.
ANALYSIS_SECONDS, ANALYSIS_PER_TOKEN = 0.5, 4e-4


@dataclass(frozen=True, kw_only=True)
class Speed:
    cpu: float
    """CPU seconds of training for each token."""
    wall: float
    """Seconds of training for each token."""
    valid: float
    """Seconds of a validation."""
    test: float
    """Seconds of a test."""
    analysis: float
    """Seconds of what is measured once, when the run has ended."""

    def fixed(self, num_regimes: int, num_points: int) -> float:
        """Seconds of a run besides training. A regime has a test and a look at training tokens."""
        return num_points * self.valid + num_regimes * (self.test + self.valid) + self.analysis


def measure_speed(
    variant: Variant,
    corpus: CorpusLike,
    token_counts: Sequence[int],
    *,
    test_batch_size: int,
    has_cache: bool,
    device: str = "cpu",
) -> Speed:
    """Train a fresh model for a moment.

    Args:
        has_cache: whether it is also evaluated with a cache.
    """
    torch.manual_seed(0)
    config, vocab_size = variant.config, len(corpus.vocabulary)
    model = build_model(config, vocab_size, token_counts=token_counts).to(device)
    trainer = Trainer(
        config, model, Streams(corpus.split("train"), config.batch.batch_size, device)
    )
    for _ in range(NUM_FIRST):
        _train_window(trainer)
    start, cpu_start, tokens, count = time.monotonic(), time.process_time(), 0, 0
    while count < NUM_WINDOWS or time.monotonic() - start < SECONDS:
        tokens += _train_window(trainer)
        count += 1
    wall, cpu = time.monotonic() - start, time.process_time() - cpu_start
    valid = seconds_of_test(model, corpus.split("valid"), config.valid_batch_size)
    test = seconds_of_test(model, corpus.split("test"), test_batch_size)
    if has_cache:
        test += 3 * seconds_of_test(model, corpus.split("test"), 1)
    analysis = ANALYSIS_SECONDS + ANALYSIS_PER_TOKEN * vocab_size
    return Speed(
        cpu=max(cpu, 1e-9) / tokens,
        wall=max(wall, 1e-9) / tokens,
        valid=valid,
        test=test,
        analysis=analysis,
    )


def _train_window(trainer: Trainer) -> int:
    """A short corpus is over soon, and begins again."""
    if trainer.is_epoch_over:
        trainer.end_epoch(0.0)
    return trainer.train_window(0.0)
