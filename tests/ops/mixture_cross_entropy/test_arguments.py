"""A caller's mistake is answered with the name, the contract and the value."""

import re

import pytest
import torch

from highrank.ops.logit_map import PiecewiseLinear
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss


@pytest.mark.parametrize("value", [7, -1, 1000, -101])
def test_a_target_out_of_range_is_named_together_with_the_vocabulary(problem, solve, value):
    inputs = problem(V=7)
    inputs.target[:] = torch.tensor([6, -100, 0] * 3)
    solve(inputs)
    inputs.target[[4, 6]] = torch.tensor([value, 99])
    with pytest.raises(ValueError, match=rf"target must be in 0 … 6 \(V = 7\), got {value}$"):
        solve(inputs)


def trained(*shape):
    return torch.ones(shape).double().requires_grad_()


REPLACED = {
    "context must be (..., K, E), got (4,)": {"context": torch.zeros(4)},
    "context must have at least one component, got (9, 0, 4)": {"context": torch.zeros(9, 0, 4)},
    "log_weight must be (9, 3), got (9, 2)": {"log_weight": torch.zeros(9, 2)},
    "log_weight must be (9, 3), got (1, 3)": {"log_weight": torch.zeros(1, 3)},
    "target must be (9,), got (8,)": {"target": torch.zeros(8, dtype=torch.long)},
    "target must be (9,), got ()": {"target": torch.tensor(0)},
    "weight must be (V, 4) with V at least 1, got (7, 5)": {"weight": torch.zeros(7, 5)},
    "weight must be (V, 4) with V at least 1, got (4,)": {"weight": torch.zeros(4)},
    "weight must be (V, 4) with V at least 1, got (0, 4)": {"weight": torch.zeros(0, 4)},
    "bias must be (7,), got (1,)": {"bias": torch.zeros(1)},
    "target must have an integer dtype, got torch.float32": {"target": torch.zeros(9)},
    "target must have an integer dtype, got torch.bool": {"target": torch.zeros(9) > 0},
    "weight must be torch.float32 as context is, or less precise, got torch.float64": {
        "context": torch.zeros(9, 3, 4)
    },
    "bias must be torch.float64 as context is, or less precise, got torch.int64": {
        "bias": torch.zeros(7).long()
    },
    "reduction must be one of ('mean', 'sum', 'none'), got 'total'": {"reduction": "total"},
    "backend must be auto or one of ['reference', 'chunked', 'fused'], got 'fast'": {
        "backend": "fast"
    },
    'backend must be "chunked" or "reference" for reduction="none", got "fused"': {
        "backend": "fused",
        "reduction": "none",
    },
    "extra must be two tensors (9, 'J'), got (9, 2) and (9, 3)": {
        "extra": (torch.zeros(9, 2), torch.zeros(9, 3))
    },
    "chunk_bytes must be at least 1, got 0": {"chunk_bytes": 0},
    "label_smoothing must be at least 0 and below 1, got 1.0": {"label_smoothing": 1.0},
    "z_loss must be at least 0 and finite, got -1.0": {"z_loss": -1.0},
    "z_loss must be at least 0 and finite, got inf": {"z_loss": float("inf")},
    "shift must be below the number of positions, 9, got 9": {"shift": 9},
    "class_weight must be (7,), got (3,)": {"class_weight": torch.ones(3)},
    "token_weight must have the shape of the targets, got (3,)": {"token_weight": torch.ones(3)},
    "token_weight must not require a gradient, got one that does": {"token_weight": trained(9)},
    "class_weight must not require a gradient, got one that does": {"class_weight": trained(7)},
    "logit_map must have no parameters that require a gradient (backend='reference' trains them), "
    "got PiecewiseLinear": {"logit_map": PiecewiseLinear(5)},
    "target probabilities must not require a gradient, got ones that do": {
        "target": (torch.zeros(9, 2, dtype=torch.long), trained(9, 2))
    },
}


@pytest.mark.parametrize("message", REPLACED)
def test_a_wrong_argument_is_named(problem, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        mixture_cross_entropy(**(problem()._asdict() | REPLACED[message]))


def test_an_unknown_option_is_refused_by_name(problem):
    with pytest.raises(TypeError, match=r"got \['label_smothing'\]"):
        mixture_cross_entropy(**problem()._asdict(), label_smothing=0.1)
    with pytest.raises(ValueError, match=r"also must be empty while compiling, got \['entropy'\]"):
        mixture_loss(**problem()._asdict(), also=("entropy",), backend="registered")
