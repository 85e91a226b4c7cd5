"""What a finetuning has come to: curves of every model, compared at equal tokens and equal time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from highrank.environment import Environment
from highrank.studies.finetune.settings import SOFTMAX, Settings


@dataclass(frozen=True, kw_only=True)
class Components:
    """Of a mixture, on contexts of the held-out text."""

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
    state: str
    """"collapsed", "weak" or "specialised"."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A model with its averaged weights, after some steps."""

    step: int
    seconds: float
    """Of training, evaluations left out."""
    train_nats: float | None
    """Mean of the steps since the point before; None at the start."""
    valid_nats: float
    """Mean of a held-out token."""
    components: Components | None = None
    """None for a softmax."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One model that was trained on."""

    variant: str
    """A start of a mixture, or "softmax"."""
    seed: int
    num_parameters: int
    num_trained: int
    """Parameters that training changes."""
    step_seconds: float | None
    """Median time of a step, while it was trained; None if nothing was."""
    points: tuple[Point, ...]

    @property
    def num_steps(self) -> int:
        return self.points[-1].step

    def nats_at(self, step: float) -> float:
        """Held-out loss after so many steps, interpolated between two evaluations."""
        before = [point for point in self.points if point.step <= step][-1]
        after = next((point for point in self.points if point.step > step), before)
        if after is before:
            return before.valid_nats
        part = (step - before.step) / (after.step - before.step)
        return before.valid_nats + part * (after.valid_nats - before.valid_nats)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Over seeds."""

    value: float
    error: float | None
    """Standard error; None for one seed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    variant: str
    step: float
    """Steps that count, mean over seeds."""
    nats: Mean
    """Per held-out token."""
    gain: Mean | None
    """Nats below the softmax of the same seed; None for the softmax itself."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    at: float
    """Tokens, or seconds."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class FinetuneResult:
    settings: Settings
    num_train_tokens: int
    """Of the text; each epoch has all of them."""
    num_valid_tokens: int
    """That are predicted in an evaluation."""
    bytes_per_token: float
    """Of the held-out text: bits per byte are nats / log 2 / this."""
    train_sha256: str
    valid_sha256: str
    """Of the token ids."""
    arms: tuple[Arm, ...]
    step_seconds: dict[str, float | None]
    """Of each variant, measured in turns before the training."""
    equal_tokens: Comparison
    equal_time: Comparison
    environment: Environment


def of_variant(arms: Sequence[Arm], variant: str) -> list[Arm]:
    return [arm for arm in arms if arm.variant == variant]


def compare_tokens(arms: Sequence[Arm], tokens_per_step: int) -> Comparison:
    """At as many tokens as every model has been trained on."""
    step = min(arm.num_steps for arm in arms if arm.step_seconds is not None)
    return Comparison(at=step * tokens_per_step, rows=_rows(arms, lambda arm: step))


def compare_time(arms: Sequence[Arm], step_seconds: Mapping[str, float | None]) -> Comparison:
    """At as many seconds as every model has been trained for.

    Args:
        step_seconds: of each variant, measured in turns: time is steps × this, so that what else
            the machine did while one of them was trained does not matter.
    """
    spent = [
        arm.num_steps * each for arm in arms if (each := step_seconds[arm.variant]) is not None
    ]
    at = min(spent)

    def steps(arm: Arm) -> float:
        each = step_seconds[arm.variant]
        return 0.0 if each is None else at / each

    return Comparison(at=at, rows=_rows(arms, steps))


def _rows(arms: Sequence[Arm], step_of: Callable[[Arm], float]) -> tuple[Row, ...]:
    softmax = {arm.seed: arm.nats_at(step_of(arm)) for arm in of_variant(arms, SOFTMAX)}
    rows = []
    for variant in dict.fromkeys(arm.variant for arm in arms):
        found = {arm.seed: arm.nats_at(step_of(arm)) for arm in of_variant(arms, variant)}
        gains = [softmax[seed] - value for seed, value in found.items()]
        rows.append(
            Row(
                variant=variant,
                step=fmean(step_of(arm) for arm in of_variant(arms, variant)),
                nats=mean_of(list(found.values())),
                gain=None if variant == SOFTMAX else mean_of(gains),
            )
        )
    return tuple(rows)


def mean_of(values: Sequence[float]) -> Mean:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(value=fmean(values), error=error)
