"""The implementations of the loss that are compared: all of them are the reference's loss."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.studies.bench import baselines
from highrank.studies.bench.baselines import (
    SHAPES,
    TINY,
    Inputs,
    composition_loss,
    log_space_loss,
    mixture_inputs,
    original_loss,
    package_loss,
    softmax_inputs,
    variants,
)

SMALL = replace(TINY, num_tokens=30, vocab_size=200)
needs_composition = pytest.mark.skipif(
    baselines.missing_composition() is not None, reason="torch is older than 2.13"
)
LOSSES = {
    "fused": partial(package_loss, "fused", 5000),
    "chunked": partial(package_loss, "chunked", 5000),
    "original": original_loss,
    "log-space": log_space_loss,
    "composition": partial(composition_loss, 7),
}


def gradients(value, inputs):
    return torch.autograd.grad(value, inputs[:4])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_composition if n == "composition" else ()) for n in LOSSES]
)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_every_implementation_has_the_loss_and_the_gradients_of_the_reference(
    name, dtype, tolerance, monkeypatch
):
    # Without its epsilon the original is exact, too.
    monkeypatch.setattr(baselines, "EPSILON", 0.0)
    *floats, target = mixture_inputs(SMALL)
    inputs = Inputs(*(x.detach().to(dtype).requires_grad_() for x in floats), target)
    want = package_loss("reference", None, inputs)
    got = LOSSES[name](inputs)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for one, other in zip(gradients(got, inputs), gradients(want, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_softmax_has_as_many_parameters_as_the_mixture(shape):
    sizes = (shape.hidden_size, shape.vocab_size)
    mixture = MixtureOfSoftmaxes(*sizes, shape.num_components, shape.embedding_size, device="meta")
    softmax = Softmax(*sizes, shape.softmax_size, device="meta")
    want, got = (sum(p.numel() for p in head.parameters()) for head in (mixture, softmax))
    assert got == pytest.approx(want, rel=0.01)


def test_inputs_are_repeatable_and_logits_are_a_few_units():
    one = mixture_inputs(SMALL)
    mixture_inputs.cache_clear()
    other = mixture_inputs(SMALL)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    torch.testing.assert_close(one.log_weight.exp().sum(-1), torch.ones(SMALL.num_tokens))
    assert 1 < F.linear(one.context, one.weight, one.bias).std() < 4
    assert softmax_inputs(SMALL).context.shape == (SMALL.num_tokens, 1, SMALL.softmax_size)


class Multiplies(TorchDispatchMode):
    """The shapes of the matrix multiplies inside `with Multiplies()`."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.strip("_") in ("mm", "addmm"):
            *_, left, right = (a for a in args if isinstance(a, torch.Tensor))
            self.shapes.append((*left.shape, right.shape[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("chunk_bytes", [None, 1, 10_000])
def test_the_lower_bound_multiplies_the_chunks_of_fused(chunk_bytes):
    matmul, fused, *_ = (variant.prepare for variant in variants(SMALL, chunk_bytes, rows=8))
    bound, fused = matmul(), fused()
    with Multiplies() as want:
        fused()
    with Multiplies() as got:
        bound()
    assert got.shapes == want.shapes
