"""Tokens that cannot be predicted, numbers that are not numbers, probabilities that underflow."""

import pytest
import torch
import torch.nn.functional as F

from highrank.ops.logit_map import Softcap

IMPOSSIBLE = [1, 4, 8]
POSSIBLE = [0, 2, 3, 5, 6, 7]


@pytest.fixture
def with_impossible(problem):
    """Nine tokens, of which three have a target that no component can predict."""
    inputs = problem()
    inputs.bias[6] = -torch.inf
    inputs.target[POSSIBLE] = torch.tensor([0, 1, 2, 3, 2, 1])
    inputs.target[IMPOSSIBLE] = 6
    return inputs


def only(inputs, tokens):
    names = ("context", "log_weight", "target")
    return inputs._replace(**{name: getattr(inputs, name)[tokens] for name in names})


@pytest.mark.parametrize("chunk_bytes", [1, 400, None])
def test_gradients_are_those_of_the_batch_without_impossible_targets(
    with_impossible, solve, agree, way, chunk_bytes
):
    loss, *gradients = solve(with_impossible, chunk_bytes=chunk_bytes, **way)
    d_context, d_log_weight, *shared = gradients
    _, *want = solve(only(with_impossible, POSSIBLE), **(way | {"backend": "reference"}))
    agree([d_context[POSSIBLE], d_log_weight[POSSIBLE], *shared], want)
    assert (d_context[IMPOSSIBLE] == 0).all() and (d_log_weight[IMPOSSIBLE] == 0).all()
    if way["reduction"] == "none":
        assert (loss == torch.inf).nonzero().squeeze(1).tolist() == IMPOSSIBLE
    else:
        assert loss == torch.inf


def test_only_impossible_targets_give_infinite_loss_and_no_gradient(with_impossible, solve, way):
    loss, *gradients = solve(only(with_impossible, IMPOSSIBLE), **way)
    assert (loss == torch.inf).all()
    assert all((gradient == 0).all() for gradient in gradients)


def test_a_target_of_components_without_weight_is_impossible(problem, solve, way):
    inputs = problem(K=2)
    inputs.log_weight[3] = -torch.inf
    loss, *gradients = solve(inputs, **way)
    assert (loss if loss.dim() == 0 else loss[3]) == torch.inf
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][3] == 0).all()


def test_impossible_tokens_do_no_harm_to_the_others(problem, solve, agree, way):
    inputs = problem(V=7)
    inputs.target.fill_(2)
    fewer = inputs._replace(weight=inputs.weight[:5], bias=inputs.bias[:5])
    inputs.bias[5:] = -torch.inf
    loss, d_context, d_log_weight, d_weight, d_bias = solve(inputs, **way)
    got = loss, d_context, d_log_weight, d_weight[:5], d_bias[:5]
    agree(got, solve(fewer, **(way | {"backend": "reference"})))
    assert (d_weight[5:] == 0).all() and (d_bias[5:] == 0).all()


@pytest.mark.parametrize("name", ["context", "log_weight", "weight", "bias"])
def test_nan_is_not_hidden_and_stays_with_its_token(problem, solve, way, name):
    inputs = problem()
    getattr(inputs, name)[(2,) * getattr(inputs, name).dim()] = torch.nan
    loss = solve(inputs, **way)[0]
    assert (loss if loss.dim() == 0 else loss[2]).isnan()
    if loss.dim() and name in ("context", "log_weight"):
        assert loss.isnan().nonzero().tolist() == [[2]]


@pytest.mark.parametrize("logit_map", [None, Softcap(300.0)], ids=["", "softcap"])
@pytest.mark.parametrize("behind", [60.0, 90.0, 110.0, 200.0])
def test_a_probability_too_small_for_float32_has_the_right_loss(
    problem, solve, way, behind, logit_map
):
    inputs = problem(K=2, E=8, V=50)
    inputs.bias[inputs.target] -= behind
    want = solve(inputs, logit_map=logit_map, **(way | {"backend": "reference"}))[0]
    single = type(inputs)(*(t.float() for t in inputs[:4]), inputs.target)
    got = solve(single, logit_map=logit_map, chunk_bytes=1600, **way)[0]
    assert want.max() > behind / 2
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0)


def test_underflow_in_one_component_leaves_the_other(solve, problem, way):
    # Component 0 gives the target e^-300, component 1 a half.
    inputs = problem((1,), K=2, E=1, V=2)._replace(
        context=torch.tensor([[[300.0], [0.0]]]),
        log_weight=torch.tensor([[0.5, 0.5]]).log(),
        weight=torch.tensor([[0.0], [1.0]]),
        bias=torch.zeros(2),
        target=torch.tensor([0]),
    )
    loss, _, d_log_weight, *_ = solve(inputs, **way)
    torch.testing.assert_close(loss.squeeze(), torch.tensor(0.25).log().neg())
    torch.testing.assert_close(d_log_weight, torch.tensor([[0.0, -1.0]]))


def test_the_gradient_of_an_underflown_probability_is_torchs(problem, solve, agree, way):
    inputs = problem(K=1, E=8, V=50)
    inputs.bias[inputs.target] -= 200.0
    weight = inputs.weight.detach().requires_grad_()
    logits = F.linear(inputs.context.squeeze(1), weight, inputs.bias)
    loss = F.cross_entropy(logits, inputs.target, reduction=way["reduction"])
    want = torch.autograd.grad(loss.sum(), weight)
    agree(solve(inputs, **way)[3:4], want)
