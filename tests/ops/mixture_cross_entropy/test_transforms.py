"""vmap, per-sample gradients, ensembles and forward-mode derivatives through torch.func."""

import pytest
import torch
from torch.func import grad, jvp, vmap

from highrank.ops.mixture_cross_entropy import mixture_cross_entropy

B = 4
# torch itself loads a deprecated module for its transforms.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def loss_of(context, log_weight, weight, bias, target, **options):
    return mixture_cross_entropy(context, log_weight, weight, target, bias=bias, **options)


@pytest.fixture(params=["mean", "sum", "none"])
def reduction(request):
    return request.param


def batched(problem):
    """Samples of five tokens, one of which has an ignored target."""
    context, log_weight, weight, bias, target = problem((B, 5))
    target[1, 2] = -100
    return context, log_weight, weight, bias, target


def test_vmap_over_samples_is_a_loop(problem, reduction):
    context, log_weight, weight, bias, target = batched(problem)
    over = vmap(lambda *sample: loss_of(*sample[:2], weight, bias, sample[2], reduction=reduction))
    samples = zip(context, log_weight, target, strict=True)
    want = [loss_of(c, w, weight, bias, t, reduction=reduction) for c, w, t in samples]
    torch.testing.assert_close(over(context, log_weight, target), torch.stack(want))


def test_gradients_of_each_sample_are_those_of_a_loop(problem, agree):
    inputs = batched(problem)
    in_dims = (0, 0, None, None, 0)
    got = vmap(grad(loss_of, argnums=(0, 1, 2, 3)), in_dims)(*inputs)
    context, log_weight, weight, bias, target = inputs
    samples = zip(context, log_weight, target, strict=True)
    each = [grad(loss_of, argnums=(0, 1, 2, 3))(c, w, weight, bias, t) for c, w, t in samples]
    agree(got, [torch.stack(parts) for parts in zip(*each, strict=True)])


def test_an_ensemble_has_an_output_embedding_each(problem, agree):
    context, log_weight, weight, bias, target = problem((5,))
    weights = torch.stack([weight, weight.flip(0), weight * 2])
    over = vmap(grad(loss_of, argnums=2), (None, None, 0, None, None))
    got = over(context, log_weight, weights, bias, target)
    want = [grad(loss_of, argnums=2)(context, log_weight, w, bias, target) for w in weights]
    agree([got], [torch.stack(want)])


def test_a_sample_without_targets_has_gradients_of_zero(problem):
    """As padding alone, in one sample of several."""
    context, log_weight, weight, bias, target = batched(problem)
    target[2] = -100
    got = vmap(grad(loss_of, argnums=(0, 2)), (0, 0, None, None, 0))(
        context, log_weight, weight, bias, target
    )
    assert not any(g[2].any() for g in got) and all(g[1].any() for g in got)


def test_fused_gradients_are_refused_inside_transforms(problem):
    context, log_weight, weight, bias, target = problem((5,))
    with pytest.raises(ValueError, match='must be "chunked" or "reference" inside torch.func'):
        grad(loss_of)(context, log_weight, weight, bias, target, backend="fused")


def test_forward_mode_works_through_the_reference_and_is_refused_elsewhere(problem):
    context, log_weight, weight, bias, target = problem((5,))
    tangent = torch.ones_like(context)

    def run(backend):
        def of_context(context):
            return loss_of(context, log_weight, weight, bias, target, backend=backend)

        return jvp(of_context, (context,), (tangent,))[1]

    gradient = grad(loss_of)(context, log_weight, weight, bias, target)
    torch.testing.assert_close(run("reference"), (gradient * tangent).sum())
    with pytest.raises(RuntimeError, match="Forward-mode derivatives .* use backend='reference'"):
        run("auto")
