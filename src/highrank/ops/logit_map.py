"""Elementwise maps of logits, applied before the softmax: softmax(φ(z)) instead of softmax(z).

A map is an object with a value and a slope; the mixture loss takes any. All maps here increase, so
that the likeliest token stays the likeliest. R rows, V vocabulary, S segments.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from highrank.ops.derivatives import differentiable_gradients
from highrank.ops.tracing import needs_operators


class LogitMap(Protocol):
    """φ. The mixture loss trains no parameters of it."""

    def __call__(self, logits: Tensor) -> Tensor:
        """φ(z), differentiable."""

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """φ(z) and φ′(z), each (R, V); may overwrite the logits. No gradients flow here."""


# A map makes several passes over as many numbers as fit a core's cache.
BLOCK_NUMBERS = 2**16


def map_in_place(logit_map: LogitMap, logits: Tensor, slope: Tensor) -> None:
    """Write φ(z) over the logits and φ′(z) over the slope, each (R, V)."""
    # A map with parameters prepares them in every call.
    is_cheap = logits.is_cpu and not isinstance(logit_map, nn.Module)
    size = max(1, BLOCK_NUMBERS // max(1, logits.shape[1])) if is_cheap else max(1, len(logits))
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        logits[rows], slope[rows] = logit_map.with_slope(logits[rows])


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
        # Of -inf the two terms may have opposite signs.
        above = (logits - self.centre).clamp(min=torch.finfo(logits.dtype).min)
        return logits + (self.slope - 1) * F.logsigmoid(above)

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        below = (self.centre - logits).clamp_(max=torch.finfo(logits.dtype).max)  # (R, V)
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
        return Pieces(F.softplus(self.score.detach().to(logits.dtype)), self.limit).with_slope(
            logits
        )

    def extra_repr(self) -> str:
        return f"num_segments={self.num_segments}, limit={self.limit}"


def piecewise_linear(logits: Tensor, score: Tensor, limit: float) -> Tensor:
    """φ(z) with slopes softplus(score) on S segments of [-limit, limit]; φ(-limit) = -limit.

    Differentiable in logits and score (S,). The gradient in the score is two histograms, and not a
    sum over a table of indices.
    """
    slopes = F.softplus(score).to(logits.dtype)
    if needs_operators(logits):
        return Pieces(slopes, limit)(logits)
    found: Tensor = _PiecewiseLinear.apply(logits, slopes, limit)
    return found


# From the gradient in φ(z) to those in z and in the slopes.
Back = Callable[[Tensor], tuple[Tensor, Tensor]]


class Pieces(NamedTuple):
    """φ by its slopes."""

    slopes: Tensor
    """(S,)."""
    limit: float

    def __call__(self, logits: Tensor) -> Tensor:
        return self._value(*self._located(logits))

    def with_slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """φ(z) and φ′(z)."""
        segment, excess = self._located(logits)
        return self._value(segment, excess), self.slopes[segment]

    def with_gradients(self, logits: Tensor) -> tuple[Tensor, Back]:
        """φ(z), and its backward pass."""
        segment, excess = self._located(logits)
        return self._value(segment, excess), partial(self.gradients, segment, excess)

    def gradients(self, segment: Tensor, excess: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """In z and in the slopes (S,), from where z are and the gradient in φ(z)."""
        S, flat = len(self.slopes), segment.flatten()
        # A logit of -inf has no gradient, and 0 · inf would be NaN.
        finite = excess.clamp(min=torch.finfo(excess.dtype).min)
        within = torch.bincount(flat, (upstream * finite).flatten(), S).double()  # (S,)
        # The slope of a segment lifts all values above it by its length.
        here = torch.bincount(flat, upstream.flatten(), S).double()  # (S,)
        above = here.flip(0).cumsum(0).flip(0) - here
        d_slopes = (within + 2 * self.limit / S * above).to(self.slopes.dtype)
        return upstream * self.slopes[segment], d_slopes

    def _located(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The segment of each logit, and its distance from where the segment starts."""
        S = len(self.slopes)
        place = (logits.detach() + self.limit) * (S / (2 * self.limit))
        # NaN is in no segment, and stays NaN by its excess.
        segment = place.nan_to_num(0.0).clamp(0, S - 1).long()
        return segment, logits + self.limit - segment.to(logits.dtype) * (2 * self.limit / S)

    def _value(self, segment: Tensor, excess: Tensor) -> Tensor:
        # In float64: a hundred thousand small steps are summed.
        slopes = self.slopes.double()
        start = (slopes.cumsum(0) - slopes) * (2 * self.limit / len(slopes)) - self.limit  # (S,)
        # A logit of -inf has no gradient, and 0 · inf would be NaN.
        finite = excess.masked_fill(excess == -torch.inf, 0.0)
        value = start.to(self.slopes.dtype)[segment] + self.slopes[segment] * finite
        return value.masked_fill(excess == -torch.inf, -torch.inf)


class _PiecewiseLinear(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, slopes: Tensor, limit: float) -> Tensor:
        pieces = Pieces(slopes, limit)
        segment, excess = pieces._located(logits)
        ctx.limit = limit
        ctx.save_for_backward(logits, slopes, segment, excess)
        return pieces._value(segment, excess)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, slopes, segment, excess = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *Pieces(slopes, ctx.limit).gradients(segment, excess, upstream), None

        def value(logits: Tensor, slopes: Tensor) -> Tensor:
            return Pieces(slopes, ctx.limit)(logits)

        wanted = ctx.needs_input_grad[:2]
        return *differentiable_gradients(value, (logits, slopes), wanted, upstream), None


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
