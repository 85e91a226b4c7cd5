"""A temperature, fitted on valid: the baseline with one parameter that every method must beat.

    p_T(w) ∝ p(w)^(1 / T)

p is whatever the head says, however it is composed, and p_T is renormalised over all tokens: it is
a distribution again. The loss is convex in β = 1 / T, so that Newton's method finds the best T.
T time, n tokens of a window, V vocabulary.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.evaluation.static import Scored, steps
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout
from highrank.progress import OnProgress

# Tokens whose log-probabilities of the whole vocabulary are there at once.
WINDOW = 200
# Steps of Newton's method, and the relative change of β that ends it.
MOST_STEPS, TOLERANCE = 20, 1e-3
# Where all tokens are equally likely, no temperature changes anything.
SMALLEST_CURVATURE = 1e-12


@dataclass(frozen=True, kw_only=True)
class TemperatureSettings:
    temperature: float
    """T: above 1, a flatter distribution; below 1, a sharper one."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")


def score_at(
    model: LanguageModel, tokens: NDArray[np.integer], settings: TemperatureSettings
) -> Generator[Scored, None, None]:
    """Static, with every distribution at this temperature; all tokens but the first."""
    beta = 1 / settings.temperature
    for log_p, target, hidden in distributions(model, tokens):
        log_p = (beta * log_p).log_softmax(-1)  # (n, V)
        yield Scored(target, log_p.gather(-1, target[:, None])[:, 0], hidden)


def distributions(
    model: LanguageModel, tokens: NDArray[np.integer]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """log p of all tokens (n, V), the targets (n,) and the hidden states (n, D) of each window."""
    state = model.initial_state(1)
    with without_dropout(model):
        for tokens_in, target in steps(model, tokens, WINDOW):
            with torch.no_grad():
                read = model.read(tokens_in, state)
                log_p = model.head.log_prob(read.hidden, **read.past)[:, 0]
            state = read.state
            yield log_p, target[:, 0], read.backbone.hidden[:, 0]


class _Loss(NamedTuple):
    """Mean loss of a token at β, and its derivatives with respect to β."""

    nats: float
    slope: float
    curvature: float


def _loss_at(model: LanguageModel, tokens: NDArray[np.integer], beta: float) -> _Loss:
    """The slope is E[log p] - log p(target), the curvature Var[log p], both under p_T."""
    total = torch.zeros(3, dtype=torch.float64)
    for log_p, target, _ in distributions(model, tokens):
        log_p = log_p.double().cpu()
        log_q = (beta * log_p).log_softmax(-1)  # (n, V)
        q, at = log_q.exp(), target.cpu()[:, None]  # (n, V), (n, 1)
        # Impossible tokens have no part in a mean.
        known = log_p.masked_fill(log_p == -torch.inf, 0.0)
        mean = (q * known).sum(-1)  # (n,)
        variance = (q * (known - mean[:, None]) ** 2).sum(-1)  # (n,)
        loss, slope = -log_q.gather(-1, at)[:, 0], mean - log_p.gather(-1, at)[:, 0]
        total += torch.stack([part.sum() for part in (loss, slope, variance)])
    return _Loss(*(total / (len(tokens) - 1)).tolist())


def fit_temperature(
    model: LanguageModel, valid: NDArray[np.integer], on_progress: OnProgress | None = None
) -> list[tuple[TemperatureSettings, float]]:
    """Temperatures that were tried on a split, from 1 on, and their losses; the last is the best.

    A step of Newton's method changes β by a factor of two at most.
    """
    beta, trials = 1.0, list[tuple[TemperatureSettings, float]]()
    while True:
        found = _loss_at(model, valid, beta)
        trials.append((TemperatureSettings(temperature=1 / beta), found.nats))
        if on_progress is not None:
            on_progress(len(trials) / MOST_STEPS, f"temperature {1 / beta:.3f}")
        new = beta - found.slope / max(found.curvature, SMALLEST_CURVATURE)
        new = min(max(new, beta / 2), 2 * beta)
        if abs(new - beta) < TOLERANCE * beta or len(trials) == MOST_STEPS:
            return trials
        beta = new
