"""The work of a loss: multiplies, tables, and no gradient that nobody asked for."""

import pytest
import torch

from highrank.ops.mixture_cross_entropy import BACKENDS, mixture_cross_entropy

ONE_TOKEN_A_CHUNK = 1
NAMES = ("context", "log_weight", "weight", "bias")


def multiplies(watch, inputs, trained, **options):
    """Number of multiplies of a step that trains only the named inputs."""
    *tensors, target = inputs
    tensors = [
        t.detach().requires_grad_(name in trained) for name, t in zip(NAMES, tensors, strict=True)
    ]
    context, log_weight, weight, bias = tensors
    with watch() as seen:
        loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias, **options)
        if trained:
            loss.sum().backward()
    for name, tensor in zip(NAMES, tensors, strict=True):
        assert (tensor.grad is not None) == (name in trained), name
    return seen.num_multiplies


@pytest.mark.parametrize("frozen", ["context", "weight"])
def test_fused_takes_three_multiplies_a_chunk_and_a_frozen_input_saves_one(
    watch, problem, way, frozen
):
    options = {**way, "chunk_bytes": ONE_TOKEN_A_CHUNK}
    others = [name for name in NAMES if name != frozen]
    everything = multiplies(watch, problem(), NAMES, **options)
    num_chunks = 1 if way["backend"] == "reference" else 9
    assert everything == num_chunks * (4 if way["backend"] == "chunked" else 3)
    assert everything - multiplies(watch, problem(), others, **options) == num_chunks


@pytest.mark.parametrize("trained", [("log_weight",), ("bias",), ("context", "bias")], ids=str)
def test_any_input_can_be_trained_alone(problem, solve, agree, way, trained):
    inputs = problem()
    *tensors, target = inputs
    leaves = {
        n: t.detach().requires_grad_(n in trained) for n, t in zip(NAMES, tensors, strict=True)
    }
    loss = mixture_cross_entropy(**leaves, target=target, chunk_bytes=400, **way)
    got = torch.autograd.grad(loss.sum(), [leaves[name] for name in trained])
    want = dict(zip(NAMES, solve(inputs, **way)[1:], strict=True))
    agree(got, [want[name] for name in trained])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_only_the_logits_are_multiplied(watch, problem, way, mode):
    context, log_weight, weight, bias, target = problem()
    options = {"bias": bias, "chunk_bytes": ONE_TOKEN_A_CHUNK, **way}
    with mode(), watch() as seen:
        weight.requires_grad_()
        loss = mixture_cross_entropy(context, log_weight, weight, target, **options)
    assert not loss.requires_grad
    assert seen.num_multiplies == (1 if way["backend"] == "reference" else 9)


def test_ignored_targets_are_dropped_before_the_multiply(problem, solve, agree, way):
    inputs = problem()
    inputs.target[[0, 5]] = -100
    want = solve(inputs, **way)
    inputs.context[[0, 5]], inputs.log_weight[[0, 5]] = torch.nan, torch.nan
    got = solve(inputs, chunk_bytes=400, **way)
    agree(got, want)
    assert (got[1][[0, 5]] == 0).all() and (got[2][[0, 5]] == 0).all()


@pytest.mark.parametrize("options, num_tables", [({}, 1), ({"label_smoothing": 0.1}, 3)])
def test_no_table_is_larger_than_a_chunk(watch, problem, solve, fast_way, options, num_tables):
    inputs = problem((60,), K=3, E=2, V=500)
    with watch() as seen:
        solve(inputs, chunk_bytes=8 * num_tables * 4 * 3 * 500, **options, **fast_way)
    assert max(seen.sizes) == 4 * 3 * 500


@pytest.mark.parametrize(
    "reduction, want", [("mean", "fused"), ("sum", "fused"), ("none", "chunked")]
)
def test_auto_takes_fused_for_reduced_losses_and_chunked_otherwise(
    problem, monkeypatch, reduction, want
):
    taken = []

    def spy(name, losses):
        return lambda *args: taken.append(name) or losses(*args)

    for name, losses in list(BACKENDS.items()):
        monkeypatch.setitem(BACKENDS, name, spy(name, losses))
    context, log_weight, weight, _, target = problem()
    mixture_cross_entropy(context, log_weight, weight, target, reduction=reduction)
    assert taken == [want]
