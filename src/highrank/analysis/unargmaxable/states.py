"""Which hidden states there are: all, a box (after tanh), a ball (after layer norm).

A word that leads strictly on the edge of a set also leads just inside it, so that closed sets serve
for open ones. A *lifted* state (h, s) has one number more, which multiplies the biases: s = 1 in a
bounded set; where states are unbounded only h/s counts, and s ≥ 0 may be as small as it likes.

E embedding size, V vocabulary, N states.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

# Room for the rounding errors of a norm.
ROOM = 1e-12


@dataclass(frozen=True)
class Everywhere:
    """All of R^E."""

    def limits(self, embedding_size: int) -> tuple[Tensor, Tensor]:
        """The least and the greatest lifted state: any box will do, as a ratio has no scale."""
        high = torch.ones(embedding_size + 1, dtype=torch.float64)
        low = -high
        low[-1] = 0
        return low, high

    def reach(self, embedding_size: int) -> float:
        """A norm that no state exceeds, or 1 where only the direction counts."""
        return 1.0

    def project(self, lifted: Tensor) -> Tensor:
        """The nearest lifted states (N, E+1) of the set."""
        return torch.cat([lifted[:, :-1], lifted[:, -1:].clamp(min=0)], dim=1)

    def contains(self, hidden: Tensor) -> Tensor:
        """Which of the rows (N, E) certainly are states of the set, whatever the rounding."""
        return hidden.isfinite().all(dim=1)

    def greatest(self, vector: Tensor, error: Tensor) -> float:
        """At least (vector ± error)·h / max(1, ‖h‖) for every state h."""
        return float(vector_norm(vector.abs() + error)) * (1 + ROOM)


@dataclass(frozen=True)
class Box:
    """low ≤ h ≤ high in every coordinate: Box(-1, 1) for the outputs of tanh."""

    low: float | Tensor
    high: float | Tensor

    def __post_init__(self) -> None:
        low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
        if not ((low <= high) & low.isfinite() & high.isfinite()).all():
            raise ValueError(f"low and high must be finite and ordered, got {low} and {high}")

    def limits(self, embedding_size: int) -> tuple[Tensor, Tensor]:
        one = torch.ones(1, dtype=torch.float64)
        sides = (torch.as_tensor(side).detach().cpu().double() for side in (self.low, self.high))
        low, high = (torch.cat([side.expand(embedding_size), one]) for side in sides)
        return low, high

    def reach(self, embedding_size: int) -> float:
        low, high = self.limits(embedding_size)
        return float(vector_norm(torch.maximum(low.abs(), high.abs())[:-1]))

    def project(self, lifted: Tensor) -> Tensor:
        low, high = self.limits(lifted.size(1) - 1)
        return lifted.clamp(low.to(lifted.dtype), high.to(lifted.dtype))

    def contains(self, hidden: Tensor) -> Tensor:
        low, high = self.limits(hidden.size(1))
        return ((low[:-1] <= hidden) & (hidden <= high[:-1])).all(dim=1)

    def greatest(self, vector: Tensor, error: Tensor) -> float:
        low, high = (side[:-1] for side in self.limits(len(vector)))
        size = torch.maximum(low.abs(), high.abs())
        value = torch.maximum(low * vector, high * vector).sum()
        return (value + (size * (error + ROOM * vector.abs())).sum() * (1 + ROOM)).item()


@dataclass(frozen=True)
class Ball:
    """‖h‖ ≤ radius."""

    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive and finite, got {self.radius}")

    def limits(self, embedding_size: int) -> tuple[Tensor, Tensor]:
        """Those of the box around the ball."""
        return Box(-self.radius, self.radius).limits(embedding_size)

    def reach(self, embedding_size: int) -> float:
        return self.radius

    def project(self, lifted: Tensor) -> Tensor:
        hidden = lifted[:, :-1]
        norm = vector_norm(hidden, dim=1, keepdim=True)
        hidden = hidden * (self.radius * (1 - 2 * ROOM) / norm).clamp(max=1)
        return torch.cat([hidden, torch.ones_like(norm)], dim=1)

    def contains(self, hidden: Tensor) -> Tensor:
        norm: Tensor = vector_norm(hidden, dim=1)
        return norm * (1 + ROOM) <= self.radius

    def greatest(self, vector: Tensor, error: Tensor) -> float:
        return self.radius * float(vector_norm(vector.abs() + error)) * (1 + ROOM)


States = Everywhere | Box | Ball


def behind_layer_norm(
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gain: Tensor | None = None,
    shift: Tensor | None = None,
    is_centred: bool = True,
) -> tuple[Tensor, Tensor, Ball]:
    """The head W (gain ⊙ z + shift) + b as a head of z, and the ball in which z lies.

    A layer norm with ε > 0 puts out z = (x − mean) / √(variance + ε): every z with Σz = 0 and
    ‖z‖ < √E, and no other. The sum needs no bound of its own: each row's mean is taken out. Inputs
    whose variance is far above ε only come near the surface, so that the ball has more states than
    a model uses: "unreachable" holds for the model too, "reachable" says what the norm allows.

    Args:
        weight: (V, E).
        bias: (V,), or None for zeros.
        gain: (E,), the norm's `weight`, or None for ones.
        shift: (E,), its `bias`, or None for zeros.
        is_centred: False for a root-mean-square norm, which does not subtract the mean.
    """
    matrix = weight.detach().cpu().double()
    offset = matrix.new_zeros(len(matrix)) if bias is None else bias.detach().cpu().double()
    if shift is not None:
        offset = offset + matrix @ shift.detach().cpu().double()
    if gain is not None:
        matrix = matrix * gain.detach().cpu().double()
    if is_centred:
        matrix = matrix - matrix.mean(dim=1, keepdim=True)
    return matrix, offset, Ball(math.sqrt(matrix.size(1)))
