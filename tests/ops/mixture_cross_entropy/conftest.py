"""Random problems, their solution by any backend, and what it means that two solutions agree.

N tokens, K components, E embedding size, V vocabulary.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from highrank.ops.loss import REDUCTIONS
from highrank.ops.mixture_cross_entropy import BACKENDS, mixture_cross_entropy

WAYS = [(b, r) for b in BACKENDS for r in REDUCTIONS if (b, r) != ("fused", "none")]


class Problem(NamedTuple):
    context: Tensor
    log_weight: Tensor
    weight: Tensor
    bias: Tensor | None
    target: Tensor


def make_problem(shape=(9,), K=3, E=4, V=7, *, bias=True, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    return Problem(
        normal(*shape, K, E) * scale,
        normal(*shape, K).log_softmax(-1),
        normal(V, E),
        normal(V) * scale if bias else None,
        torch.randint(V, shape, generator=generator),
    )


def solve_problem(problem, *, upstream=None, **options):
    """The loss, and its gradients in context, log_weight, weight and, if there is one, bias."""
    *tensors, target = problem
    tensors = [None if t is None else t.detach().requires_grad_() for t in tensors]
    context, log_weight, weight, bias = tensors
    loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias, **options)
    upstream = torch.ones_like(loss) if upstream is None else upstream
    return loss.detach(), *torch.autograd.grad(
        loss, [t for t in tensors if t is not None], upstream
    )


def assert_agree(got, want, tolerance=1e-10):
    """max|Δ| ≤ tolerance · max(1, max|want|) for each tensor; NaN and inf in the same places."""
    for a, b in zip(got, want, strict=True):
        largest = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 0.0
        atol = tolerance * max(1.0, largest)
        torch.testing.assert_close(a, b, rtol=0, atol=atol, equal_nan=True)


@pytest.fixture(scope="session")
def problem():
    return make_problem


@pytest.fixture(scope="session")
def solve():
    return solve_problem


@pytest.fixture(scope="session")
def agree():
    return assert_agree


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="session", params=WAYS, ids="-".join)
def way(request):
    """A backend and a reduction that it can do."""
    return dict(zip(("backend", "reduction"), request.param, strict=True))


@pytest.fixture(scope="session", params=[w for w in WAYS if w[0] != "reference"], ids="-".join)
def fast_way(request):
    """As `way`, without the reference."""
    return dict(zip(("backend", "reduction"), request.param, strict=True))
