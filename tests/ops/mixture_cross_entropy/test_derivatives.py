"""Derivatives against finite differences, torch.func, and each other; vmap and checkpoints.

B samples, N tokens, K components, J further terms, E embedding size, V vocabulary.
"""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_loss

B, J = 4, 2
ARGUMENTS = (0, 1, 2, 3)
# torch itself loads a deprecated module for its transforms.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def loss_of(context, log_weight, weight, bias, target, **options):
    # Without the check of the weights, which are moved one by one.
    return mixture_loss(context, log_weight, weight, target, bias=bias, **options).loss


def as_function(inputs, has_extra=False, **options):
    """The loss as a function of its tensors, and those tensors as leaves."""
    *tensors, target = inputs
    options = {"chunk_bytes": 200, **options}
    if has_extra:
        tensors += [inputs.log_weight[..., :J] - 1, -inputs.log_weight[..., :J].square()]
    leaves = [t.detach().requires_grad_() for t in tensors if t is not None]

    def loss(*tensors):
        context, log_weight, weight, *others = tensors
        extra = tuple(others[-2:]) if has_extra else None
        bias = None if inputs.bias is None else others[0]
        return loss_of(context, log_weight, weight, bias, target, extra=extra, **options)

    return loss, leaves


def small(problem, bias=True):
    inputs = problem((3,), K=2, E=2, V=5, bias=bias)
    inputs.target[1] = -100
    return inputs


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("has_extra", [False, True], ids=["", "extra"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_derivatives_are_those_of_finite_differences(problem, way, bias, has_extra, check):
    # A second backward pass may recompute, and differ in the last bit.
    function = as_function(small(problem, bias), has_extra, **way)
    assert check(*function, nondet_tol=1e-12)
    if not has_extra:
        function = as_function(small(problem, bias), logit_map=Softcap(3.0), **way)
        assert check(*function, nondet_tol=1e-12)


def test_second_derivatives_where_some_inputs_are_frozen(problem, way):
    loss, (context, log_weight, weight, bias) = as_function(small(problem), **way)
    frozen = log_weight.detach(), weight, bias.detach()
    assert gradgradcheck(lambda c, w: loss(c, frozen[0], w, frozen[2]), (context, weight))


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
def test_torch_func_agrees_with_autograd_once_and_twice(problem, solve, agree, backend):
    def curvature(backend):
        loss, (context, *others) = as_function(small(problem), backend=backend)
        once = grad(loss)
        return grad(lambda context: once(context, *others).square().sum())(context)

    loss, leaves = as_function(small(problem), backend=backend)
    got = grad(loss, argnums=ARGUMENTS)(*leaves)
    agree(got, solve(small(problem), backend="reference")[1:])
    agree([curvature(backend)], [curvature("reference")])


@pytest.mark.parametrize("impossible", [False, True], ids=["", "impossible"])
def test_every_backward_pass_through_a_graph_gives_the_same(problem, solve, agree, way, impossible):
    inputs = problem()
    if impossible:
        inputs.bias[inputs.target[0]] = -torch.inf
    loss, leaves = as_function(inputs, **way)
    result = loss(*leaves).sum()
    for _ in range(3):
        (3 * result).backward(retain_graph=True)
    once = solve(inputs, **way)[1:]
    agree([leaf.grad for leaf in leaves], [9 * gradient for gradient in once])


def test_the_upstream_gradient_counts(problem, solve, agree, way):
    inputs, upstream = problem(), torch.linspace(-2, 3, 9).double()
    upstream = upstream if way["reduction"] == "none" else upstream[0]
    got = solve(inputs, upstream=upstream, chunk_bytes=400, **way)
    agree(got, solve(inputs, upstream=upstream, **(way | {"backend": "reference"})))
    loss, leaves = as_function(inputs, **way)
    agree(got[1:], torch.autograd.grad((loss(*leaves) * upstream).sum(), leaves))


def test_saved_tensors_are_read_once(problem):
    """Hooks that offload or recompute saved tensors work once for each of them."""
    packed, unpacked = [], []
    loss, leaves = as_function(problem())
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(1) or t, lambda t: unpacked.append(1) or t
    ):
        result = loss(*leaves)
    result.backward()
    assert len(unpacked) == len(packed) > 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_can_be_checkpointed(problem, reduction):
    loss, leaves = as_function(problem(), has_extra=True, reduction=reduction)
    want = torch.autograd.grad(loss(*leaves).sum(), leaves)
    again = torch.utils.checkpoint.checkpoint(loss, *leaves, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), leaves), want)


def samples(problem):
    """Samples of five tokens, one of which has an ignored target; one sample has no target."""
    inputs = problem((B, 5))
    inputs.target[1, 2] = inputs.target[2] = -100
    return inputs


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_vmap_over_samples_is_a_loop(problem, agree, reduction):
    context, log_weight, weight, bias, target = samples(problem)
    in_dims = (0, 0, None, None, 0)

    def loss(*tensors):
        return loss_of(*tensors, reduction=reduction)

    def gradients(*tensors):
        return grad(lambda *t: loss(*t).sum(), argnums=ARGUMENTS)(*tensors)

    each = list(zip(context, log_weight, target, strict=True))
    want = [loss(c, w, weight, bias, t) for c, w, t in each]
    agree([vmap(loss, in_dims)(*samples(problem))], [torch.stack(want)])
    want = [gradients(c, w, weight, bias, t) for c, w, t in each]
    got = vmap(gradients, in_dims)(*samples(problem))
    agree(got, [torch.stack(parts) for parts in zip(*want, strict=True)])
    assert not any(g[2].any() for g in got) and all(g[1].any() for g in got)


def test_an_ensemble_has_an_output_embedding_each(problem, agree):
    context, log_weight, weight, bias, target = problem((5,))
    weights = torch.stack([weight, weight.flip(0), weight * 2])
    over = vmap(grad(loss_of, argnums=2), (None, None, 0, None, None))
    got = over(context, log_weight, weights, bias, target)
    want = [grad(loss_of, argnums=2)(context, log_weight, w, bias, target) for w in weights]
    agree([got], [torch.stack(want)])


def test_forward_mode_goes_through_the_reference(problem):
    context, *others = problem((5,))
    tangent = torch.ones_like(context)

    def run(backend):
        return jvp(lambda c: loss_of(c, *others, backend=backend), (context,), (tangent,))[1]

    for backend in ("auto", "reference"):
        want = (grad(loss_of)(context, *others) * tangent).sum()
        torch.testing.assert_close(run(backend), want)
    for backend in ("fused", "chunked"):
        with pytest.raises(ValueError, match=f"in forward mode, got '{backend}'$"):
            run(backend)
    with pytest.raises(ValueError, match='must be "chunked" or "reference" inside torch.func'):
        grad(loss_of)(context, *others, backend="fused")
