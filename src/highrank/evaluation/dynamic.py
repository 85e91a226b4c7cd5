"""Dynamic evaluation: the model learns from each segment of the text after it was scored.

Krause, Kahembwe, Murray and Renals (2018), arXiv 1709.07432. With θ₀ the trained weights, g the
gradient of a segment's mean loss, and σ, σ̄ from `highrank.evaluation.statistics`:

    rms:  θ ← θ + min(λ·σ/σ̄, 1)·(θ₀ - θ) - η·g / (σ + ε)
    sgd:  θ ← θ + λ·(θ₀ - θ) - η·g

Three conventions for η, ε and λ are published. With B batches and n parameter tensors:

    paper     σ = √(Σ g² / B)   σ̄ = mean over tensors of mean σ   Krause et al. (2018)
    original  σ = √(Σ g²)       σ̄ = sum over tensors of mean σ    their first code, and Yang et al.
    ms        σ = √(Σ g² / B)   σ̄ = sum over tensors of mean σ    --ms in the code of Yang et al.

So η and ε of "original" are √B times the paper's; λ of both others is n times the paper's. The
conversion is exact with the clipped decay, too: what is clipped is the product λ·σ/σ̄.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank.evaluation.static import (
    Evaluation,
    Forward,
    Scored,
    forward_of,
    scored,
    steps,
    summed,
)
from highrank.evaluation.statistics import (
    SEGMENT,
    GradientStatistics,
    chosen,
    differentiable,
    forward_with_graph,
    gradients,
)
from highrank.models.weights import restored
from highrank.progress import OnProgress

RULES = ("rms", "sgd")


@dataclass(frozen=True, kw_only=True)
class DynamicSettings:
    """η, ε and λ as in the paper; `converted` makes them from others."""

    lr: float = 5e-5
    """η, the learning rate."""
    epsilon: float = 2e-5
    """ε: added to σ, so that what had hardly any gradient in training takes no huge steps."""
    decay: float = 2e-3
    """λ: the pull toward the trained weights."""
    segment: int = SEGMENT
    """Tokens that are scored, then learned from, at once."""
    rule: Literal["rms", "sgd"] = "rms"
    """Whether steps are scaled by the gradient statistics; "sgd" has no ε."""
    adapt: tuple[str, ...] | None = None
    """Names of the parameters that learn, or of modules; all if None. It changes nothing else: σ̄
    is always that of the whole model."""

    def __post_init__(self) -> None:
        for name, value in {"lr": self.lr, "decay": self.decay}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}")
        if self.rule == "sgd" and self.decay > 1:
            raise ValueError(f"decay must be at most 1 for the rule sgd, got {self.decay}")
        if self.segment < 1:
            raise ValueError(f"segment must be at least 1, got {self.segment}")


def score_dynamically(
    model: nn.Module,
    tokens: NDArray[np.integer],
    settings: DynamicSettings,
    statistics: GradientStatistics | None = None,
    forward: Forward | None = None,
) -> Generator[Scored, None, None]:
    """One stream, each segment scored by a model that has learned from those before.

    Everything random is off and the state is carried. While the stream is open, the model has
    other weights; it has its own, and its mode, again when the stream is exhausted, closed, or
    ended by an exception. Who may stop before the end should use `contextlib.closing`.

    Args:
        statistics: of the training split, in segments as long; the rule "sgd" needs none.
        forward: of a model that is no `LanguageModel`.
    """
    parameters = chosen(model, settings.adapt)
    if settings.rule == "rms":
        _check_statistics(model, statistics, settings.segment)
    forward = forward_of(model, forward)

    def segments() -> Generator[Scored, None, None]:
        weights, state = list(parameters.values()), None
        with differentiable(model, weights), restored(model):
            update = _updater(parameters, settings, statistics)
            for tokens_in, target in steps(model, tokens, settings.segment):
                out = forward_with_graph(forward, tokens_in, target, state)
                state = out.state
                yield scored(out, target)
                update(gradients(out, weights))

    return segments()


def evaluate_dynamically(
    model: nn.Module,
    tokens: NDArray[np.integer],
    settings: DynamicSettings,
    statistics: GradientStatistics | None = None,
    on_progress: OnProgress | None = None,
    forward: Forward | None = None,
) -> Evaluation:
    """The mean loss of `score_dynamically`; the model is left as it was, whatever happens."""
    segments = score_dynamically(model, tokens, settings, statistics, forward)
    return summed(segments, len(tokens) - 1, on_progress)


def _updater(
    parameters: dict[str, nn.Parameter],
    settings: DynamicSettings,
    statistics: GradientStatistics | None,
) -> Callable[[Sequence[Tensor]], None]:
    """A function that takes the gradients of a segment's loss and changes the parameters.

    θ₀ is the weights as they are now. What stays the same from segment to segment is computed once.
    """
    weights: list[Tensor] = list(parameters.values())
    trained = [p.detach().clone() for p in weights]

    @torch.no_grad()
    def sgd(gradients: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(weights, trained, settings.decay)
        torch._foreach_add_(weights, list(gradients), alpha=-settings.lr)

    if settings.rule == "sgd":
        return sgd
    assert statistics is not None
    sigmas = [statistics.rms[name].to(p) for name, p in parameters.items()]
    relative = settings.decay / statistics.mean_rms
    pull = [(relative * sigma).clamp_(max=1.0) for sigma in sigmas]
    scale = [settings.lr / (sigma + settings.epsilon) for sigma in sigmas]

    @torch.no_grad()
    def rms(gradients: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(weights, trained, pull)
        torch._foreach_addcmul_(weights, list(gradients), scale, value=-1.0)

    return rms


def _check_statistics(
    model: nn.Module, statistics: GradientStatistics | None, segment: int
) -> None:
    if statistics is None:
        raise ValueError(
            "statistics must be given for the rule rms, got None: "
            "make them with gradient_statistics"
        )
    want = {name: tuple(p.shape) for name, p in model.named_parameters()}
    have = {name: tuple(rms.shape) for name, rms in statistics.rms.items()}
    if want != have:
        wrong = sorted(name for name in want | have if want.get(name) != have.get(name))
        raise ValueError(f"statistics must be of this model, got a difference in {wrong[0]}")
    if statistics.segment != segment:
        raise ValueError(
            f"statistics must be of segments of {segment} tokens, as the settings, "
            f"got {statistics.segment}"
        )


# Whether σ² is a sum over batches, and σ̄ a sum over tensors, where the paper has means.
CONVENTIONS = {"paper": (False, False), "original": (True, True), "ms": (False, True)}


def converted(
    settings: DynamicSettings,
    source: str,
    target: str = "paper",
    *,
    num_batches: int,
    num_tensors: int,
) -> DynamicSettings:
    """The settings with lr, epsilon and decay in another convention.

    Args:
        source: the convention in which they are, a key of `CONVENTIONS`.
        target: the one in which they are wanted.
        num_batches: B, of the gradient statistics.
        num_tensors: n, of the gradient statistics; a tied parameter counts once.
    """
    for name in (source, target):
        if name not in CONVENTIONS:
            raise ValueError(f"a convention must be one of {', '.join(CONVENTIONS)}, got {name!r}")
    if settings.rule != "rms":
        raise ValueError(f"settings must be of the rule rms to be converted, got {settings.rule}")
    (sums_batches, sums_tensors), wanted = CONVENTIONS[source], CONVENTIONS[target]
    rms = math.sqrt(num_batches) ** (wanted[0] - sums_batches)
    mean = num_tensors ** (wanted[1] - sums_tensors)
    return replace(
        settings,
        lr=settings.lr * rms,
        epsilon=settings.epsilon * rms,
        decay=settings.decay * mean,
    )
