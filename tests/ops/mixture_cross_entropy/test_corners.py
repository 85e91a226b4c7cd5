"""Corners of the options: scales and maps of −inf, and batches whose targets weigh nothing."""

import pytest
import torch

from highrank.ops.logit_map import GeneralizedSigsoftmax
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss

WAYS = ["reference", "chunked", "fused", "registered"]
everywhere = pytest.mark.parametrize("backend", WAYS)


@everywhere
@pytest.mark.parametrize("factor", [-1.5, 0.0, 0.7])
def test_a_learned_scale_leaves_impossible_tokens_impossible(problem, agree, backend, factor):
    inputs = problem(V=7)
    inputs.target.clamp_(max=5)
    inputs.bias[6] = -torch.inf
    without = inputs._replace(weight=inputs.weight[:6], bias=inputs.bias[:6])
    found = []
    for case in (inputs, without):
        scale = torch.tensor(factor, dtype=torch.float64, requires_grad=True)
        bias = case.bias.requires_grad_()
        given = case._asdict() | {"bias": bias}
        loss = mixture_cross_entropy(**given, logit_scale=scale, backend=backend)
        found.append((loss.detach(), *torch.autograd.grad(loss, (scale, bias))))
    agree([found[0][2][6:]], [torch.zeros(1).double()])
    agree([*found[0][:2], found[0][2][:6]], found[1])


@everywhere
@pytest.mark.parametrize("slope", [0.3, 1.0, 2.5])
def test_a_bent_map_leaves_impossible_tokens_impossible(problem, solve, agree, backend, slope):
    inputs, logit_map = problem(V=7), GeneralizedSigsoftmax(-1.5, slope)
    inputs.target.clamp_(max=5)
    inputs.bias[6] = -torch.inf
    without = inputs._replace(weight=inputs.weight[:6], bias=inputs.bias[:6])
    got = solve(inputs, logit_map=logit_map, backend=backend)
    assert not got[3][6].any() and not got[4][6].any()
    got = (*got[:3], got[3][:6], got[4][:6])
    agree(got, solve(without, logit_map=logit_map, backend=backend))
    if slope == 1:
        agree(got, solve(without, backend="reference"))


NOTHING = {
    "ignored": lambda case: {"target": torch.full_like(case.target, -100)},
    "classes": lambda case: {"class_weight": torch.linspace(0, 1, 7).double()},
    "tokens": lambda case: {"token_weight": torch.zeros(9).double()},
}


@everywhere
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"z_loss": 0.1}, {}], ids=str)
@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("impossible", [False, True], ids=["", "impossible"])
def test_targets_that_weigh_nothing_have_no_gradients(
    problem, backend, options, nothing, impossible
):
    inputs = problem()
    inputs.target.zero_()
    if impossible:
        inputs.bias[3], inputs.target[2] = -torch.inf, 3
    given = inputs._asdict() | NOTHING[nothing](inputs)
    if impossible and nothing == "classes":
        # All the mass is that of an impossible target.
        given["class_weight"] = (
            given["class_weight"].clone().fill_(0.0).index_fill(0, torch.tensor([3]), 1.0)
        )
    leaves = [given[name].requires_grad_() for name in ("context", "log_weight", "weight", "bias")]
    loss = mixture_loss(**given, **options, backend=backend).loss
    assert loss == torch.inf if impossible and nothing == "classes" else loss.isnan()
    for gradient in torch.autograd.grad(loss, leaves):
        assert not gradient.any()
