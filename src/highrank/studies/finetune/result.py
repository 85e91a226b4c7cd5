"""Curves of every model of a finetuning, compared at equal tokens and at equal time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.components import MixtureState
from highrank.analysis.contrasts import Contrast, analyse
from highrank.environment import Environment
from highrank.studies.finetune.settings import BASELINE, Settings


@dataclass(frozen=True, kw_only=True)
class Components:
    """The components of a mixture, on contexts of the held-out text."""

    divergence: float
    """Mean Jensen-Shannon divergence of two components, in nats, at most log 2."""
    num_collapsed: int
    """Components that predict as one before them does: a divergence below 0.01 nats."""
    num_dead: int
    """Components of nearly no weight."""
    specialisation: float
    """Mutual information I(component; token), in nats."""
    gate_information: float
    """Mutual information I(component; context), in nats."""
    state: MixtureState


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model with its averaged weights, after some steps."""

    step: int
    seconds: float
    """Time of training, evaluations left out."""
    train_nats: float | None
    """Mean loss of the steps since the point before; None at the start."""
    valid_nats: float
    """Mean loss of a held-out token."""
    components: Components | None = None
    """None for a softmax."""


@dataclass(frozen=True, kw_only=True)
class TrainedVariant:
    """One model after its training."""

    variant: str
    """A start of a mixture, or the baseline, "softmax"."""
    seed: int
    num_parameters: int
    num_trained: int
    """Parameters that training changes."""
    points: tuple[Point, ...]

    @property
    def num_steps(self) -> int:
        return self.points[-1].step

    def nats_at(self, step: float) -> float:
        """Held-out loss after so many steps, interpolated between two evaluations."""
        steps = [point.step for point in self.points]
        return float(np.interp(step, steps, [point.valid_nats for point in self.points]))


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds."""

    value: float
    error: float | None
    """Standard error; None for one seed."""

    @staticmethod
    def over(values: NDArray[np.float64]) -> "Mean":
        from scipy.stats import sem  # type: ignore[import-untyped]

        error = float(sem(values)) if len(values) > 1 else None
        return Mean(value=fmean(values), error=error)


@dataclass(frozen=True, kw_only=True)
class Row:
    variant: str
    step: float
    """Steps that count."""
    nats: Mean
    """Loss of a held-out token."""
    gain: Mean | None
    """Nats below the baseline of the same seed; None for the baseline itself."""
    contrast: Contrast | None
    """Loss minus that of the baseline; None for the baseline itself, or with one seed."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    at: float
    """Tokens, or seconds."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class FinetuneResult:
    settings: Settings
    num_train_tokens: int
    """Tokens of the text; each epoch has all of them."""
    num_valid_tokens: int
    """Tokens that are predicted in an evaluation."""
    bytes_per_token: float
    """In the held-out text: bits per byte are nats / log 2 / this."""
    train_sha256: str
    valid_sha256: str
    """Hashes of the token ids."""
    variants: tuple[TrainedVariant, ...]
    step_seconds: dict[str, float | None]
    """Time of a step of each variant, measured in turns before the training."""
    equal_tokens: Comparison
    equal_time: Comparison
    environment: Environment


def of_variant(models: Sequence[TrainedVariant], variant: str) -> list[TrainedVariant]:
    return [model for model in models if model.variant == variant]


def compare(models: Sequence[TrainedVariant], costs: Mapping[str, float | None]) -> Comparison:
    """Losses at a cost that every model has had in training.

    Args:
        costs: tokens or seconds of a step of each variant; None if it has nothing to train. With
            seconds that were measured in turns, what else the machine did while one of the models
            was trained does not matter.
    """
    at = min(
        model.num_steps * cost
        for model in models
        if model.num_trained > 0 and (cost := costs[model.variant]) is not None
    )
    steps = {variant: 0.0 if cost is None else at / cost for variant, cost in costs.items()}
    variants = list(dict.fromkeys(model.variant for model in models))
    losses = np.array(
        [[one.nats_at(steps[name]) for one in of_variant(models, name)] for name in variants]
    )  # (C, S)
    baseline = variants.index(BASELINE)
    others = [i for i in range(len(variants)) if i != baseline]
    found = analyse(losses, [(i, baseline) for i in others])
    contrasts = {} if found is None else dict(zip(others, found.contrasts, strict=True))
    rows = (
        Row(
            variant=name,
            step=steps[name],
            nats=Mean.over(losses[i]),
            gain=None if i == baseline else Mean.over(losses[baseline] - losses[i]),
            contrast=contrasts.get(i),
        )
        for i, name in enumerate(variants)
    )
    return Comparison(at=at, rows=tuple(rows))
