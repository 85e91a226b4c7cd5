"""Elementwise maps of logits, applied before the softmax: softmax(φ(z)) instead of softmax(z).

A map is an object with a value and a slope; the mixture loss takes any. All maps here increase, so
that the likeliest token stays the likeliest. R rows, V vocabulary, S segments.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class LogitMap(Protocol):
    """φ. The mixture loss trains no parameters of it."""

    def __call__(self, logits: Tensor) -> Tensor:
        """φ(z), differentiable."""

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """φ(z) and φ′(z), each (R, V); may overwrite the logits. No gradients flow here."""


@dataclass(frozen=True)
class Softcap:
    """φ(z) = cap · tanh(z / cap), as in Gemma 2: no logit is larger than the cap."""

    cap: float

    def __post_init__(self) -> None:
        if not 0 < self.cap < math.inf:
            raise ValueError(f"cap must be positive and finite, got {self.cap}")

    def __call__(self, logits: Tensor) -> Tensor:
        return self.cap * torch.tanh(logits / self.cap)

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        capped = logits.div_(self.cap).tanh_().mul_(self.cap)  # (R, V)
        return capped, 1 - (capped / self.cap).square_()


@dataclass(frozen=True)
class GeneralizedSigsoftmax:
    """φ(z) = z + (slope - 1) · log σ(z - centre): Parthiban, Mao and Inkpen (2021).

    It has this slope far below the centre, and slope 1 far above it. The defaults are sigsoftmax:
    Kanai, Fujiwara, Yamanaka and Adachi (2018).
    """

    centre: float = 0.0
    slope: float = 2.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.centre) and 0 < self.slope < math.inf):
            raise ValueError(
                "centre must be finite and slope positive and finite, "
                f"got {self.centre} and {self.slope}"
            )

    def __call__(self, logits: Tensor) -> Tensor:
        return logits + (self.slope - 1) * F.logsigmoid(logits - self.centre)

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        below = self.centre - logits  # (R, V)
        # -log σ(-x); from 40 on it is x, to the last digit of float64.
        bent = F.softplus(below, threshold=40)  # (R, V)
        slope = below.sigmoid_().mul_(self.slope - 1).add_(1.0)
        return logits.add_(bent, alpha=1 - self.slope), slope


class PiecewiseLinear(nn.Module):
    """A learned, increasing, piecewise linear φ (PLIF): Ganea, Gelly, Bécigneul and Severyn (2019).

    S segments of equal length on [-limit, limit]; the outer ones go on beyond it. The slope of a
    segment is softplus of its parameter. Slopes of 1 are the identity.

    Args:
        num_segments: S. The paper has 100,000.
        limit: the paper has 20.
    """

    def __init__(
        self,
        num_segments: int = 100_000,
        limit: float = 20.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_segments < 1:
            raise ValueError(f"num_segments must be at least 1, got {num_segments}")
        if not 0 < limit < math.inf:
            raise ValueError(f"limit must be positive and finite, got {limit}")
        self.num_segments, self.limit = num_segments, limit
        self.score = nn.Parameter(torch.empty(num_segments, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the paper: normal around a slope of 1."""
        nn.init.normal_(self.score, mean=math.log(math.e - 1))

    def forward(self, logits: Tensor) -> Tensor:
        return piecewise_linear(logits, self.score, self.limit)

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        slope = F.softplus(self.score.detach().to(logits.dtype))  # (S,)
        segment, excess = _located(logits, slope, self.limit)  # (R, V), (R, V)
        return _value(segment, excess, slope, self.limit), slope[segment]

    def extra_repr(self) -> str:
        return f"num_segments={self.num_segments}, limit={self.limit}"


def piecewise_linear(logits: Tensor, score: Tensor, limit: float) -> Tensor:
    """φ(z) with slopes softplus(score) on S segments of [-limit, limit]; φ(-limit) = -limit.

    Differentiable in logits and score (S,). The gradient in the score is two histograms, and not a
    sum over a table of indices.
    """
    found: Tensor = _PiecewiseLinear.apply(logits, F.softplus(score).to(logits.dtype), limit)
    return found


class _PiecewiseLinear(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, slope: Tensor, limit: float) -> Tensor:
        segment, excess = _located(logits, slope, limit)
        ctx.limit = limit
        ctx.save_for_backward(segment, excess, slope)
        return _value(segment, excess, slope, limit)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        segment, excess, slope = ctx.saved_tensors
        S, flat = len(slope), segment.flatten()
        # A logit of -inf has no gradient, and 0 · inf would be NaN.
        finite = excess.clamp(min=torch.finfo(excess.dtype).min)
        within = torch.bincount(flat, (upstream * finite).flatten(), S).double()  # (S,)
        # The slope of a segment lifts all values above it by its length.
        here = torch.bincount(flat, upstream.flatten(), S).double()  # (S,)
        above = here.flip(0).cumsum(0).flip(0) - here
        d_slope = (within + 2 * ctx.limit / S * above).to(slope.dtype)
        return upstream * slope[segment], d_slope, None


def _located(logits: Tensor, slope: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """The segment of each logit, and its distance from where the segment starts."""
    S = len(slope)
    place = (logits + limit) * (S / (2 * limit))
    segment = place.clamp(0, S - 1).long()
    return segment, logits + limit - segment.to(logits.dtype) * (2 * limit / S)


def _value(segment: Tensor, excess: Tensor, slope: Tensor, limit: float) -> Tensor:
    # In float64: a hundred thousand small steps are summed.
    start = slope.double().cumsum(0) - slope.double()  # (S,)
    start = (start * (2 * limit / len(slope)) - limit).to(slope.dtype)
    return start[segment] + slope[segment] * excess


FORMS = "sigsoftmax, gss:CENTRE,SLOPE, softcap:CAP or plif:SEGMENTS,LIMIT"
# How many numbers follow each name.
COUNTS = {"sigsoftmax": (0,), "gss": (2,), "softcap": (1,), "plif": (0, 1, 2)}


def parse_logit_map(text: str) -> LogitMap:
    """A map from its name and numbers: "sigsoftmax", "gss:-1.5,2.5", "softcap:30", "plif"."""
    name, _, rest = text.partition(":")
    parts = rest.split(",") if rest else []
    is_known = name in COUNTS and len(parts) in COUNTS[name]
    if not is_known or not all(re.fullmatch(r"-?\d+(\.\d*)?", part) for part in parts):
        raise ValueError(f"the map of logits must be {FORMS}, got {text!r}")
    if name == "plif":
        options: dict[str, Any] = dict(zip(("num_segments", "limit"), parts, strict=False))
        kinds = {"num_segments": int, "limit": float}
        return PiecewiseLinear(**{key: kinds[key](value) for key, value in options.items()})
    numbers = map(float, parts)
    return Softcap(*numbers) if name == "softcap" else GeneralizedSigsoftmax(*numbers)
