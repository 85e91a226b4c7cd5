from dataclasses import asdict, replace
from functools import partial
from json import dumps

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.ops.mixture_cross_entropy.reference import losses as reference
from highrank.studies.bench import baselines, harness, loss
from highrank.studies.bench.baselines import (
    SHAPES,
    TINY,
    composition_loss,
    log_space_loss,
    mixture_inputs,
    original_loss,
    our_loss,
    prepare_limit,
    softmax_inputs,
    variants,
)
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.loss import (
    WAYS,
    best_rows,
    check_losses,
    chosen_shapes,
    measure_growth,
    run_loss_bench,
)

SMALL = replace(TINY, num_tokens=30, vocab_size=200)
needs_composition = pytest.mark.skipif(
    baselines.missing_composition() is not None, reason="torch is older than 2.13"
)
LOSSES = {
    "fused": partial(our_loss, "fused", 5000),
    "chunked": partial(our_loss, "chunked", 5000),
    "original": original_loss,
    "log-space": log_space_loss,
    "composition": partial(composition_loss, 7),
}


@pytest.fixture
def without_children(monkeypatch):
    for module in (harness, loss):
        monkeypatch.setattr(module, "peak_memory", lambda *_: Peak(2**20))


def gradients(value, inputs):
    return torch.autograd.grad(value, inputs[:4])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_composition if n == "composition" else ()) for n in LOSSES]
)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_every_way_has_the_loss_and_the_gradients_of_the_reference(
    name, dtype, tolerance, monkeypatch
):
    # Without its epsilon the original is exact, too.
    monkeypatch.setattr(baselines, "EPSILON", 0.0)
    floats, target = mixture_inputs(SMALL, 1)[:4], mixture_inputs(SMALL, 1).target
    inputs = type(mixture_inputs(SMALL, 1))(
        *(x.detach().to(dtype).requires_grad_() for x in floats), target
    )
    _, want = reference(*inputs, None, "mean", None)
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
    one = mixture_inputs(SMALL, 3)
    mixture_inputs.cache_clear()
    other = mixture_inputs(SMALL, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    torch.testing.assert_close(one.log_weight.exp().sum(-1), torch.ones(SMALL.num_tokens))
    assert 1 < F.linear(one.context, one.weight, one.bias).std() < 4
    assert softmax_inputs(SMALL, 3).context.shape == (SMALL.num_tokens, 1, SMALL.softmax_size)


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
def test_the_limit_multiplies_the_chunks_of_fused(chunk_bytes):
    fused = variants(SMALL, 0, chunk_bytes, 8)[1].prepare()
    limit = prepare_limit(0, chunk_bytes, SMALL)
    with Multiplies() as want:
        fused()
    with Multiplies() as got:
        limit()
    assert got.shapes == want.shapes


def test_losses_that_differ_are_found_out():
    with torch.no_grad():
        right = our_loss("fused", None, mixture_inputs(SMALL, 0)).item()
    check_losses(SMALL, {"fused": right, "chunked": right * 1.00005, "softmax": 1.0})
    with pytest.raises(RuntimeError, match="loss of chunked at tiny must be .*, got"):
        check_losses(SMALL, {"fused": right, "chunked": right * 1.001})


def test_the_original_is_expected_to_differ_by_its_epsilon(monkeypatch):
    for module in (loss, baselines):
        monkeypatch.setattr(module, "EPSILON", 0.01)
    with torch.no_grad():
        inputs = mixture_inputs(SMALL, 0)
        right, original = our_loss("fused", None, inputs).item(), original_loss(inputs).item()
    notes = check_losses(SMALL, {"original": original})
    assert f"changes the loss by {original - right:.1g}"[:-1] in notes["original"]
    with pytest.raises(RuntimeError, match="loss of original"):
        check_losses(SMALL, {"original": right})


def test_shapes_are_chosen_by_name():
    assert [shape.name for shape in chosen_shapes((), quick=False)] == list(SHAPES)
    assert chosen_shapes(("wt2", "ptb", "wt2"), quick=False) == [SHAPES["wt2"], SHAPES["ptb"]]
    assert chosen_shapes((), quick=True) == [replace(SHAPES["ptb"], num_tokens=84)]
    with pytest.raises(ValueError, match="shapes must be among ptb, wt2, gpt2, wide, got foo"):
        chosen_shapes(("ptb", "foo"), quick=False)


@pytest.mark.parametrize("option", ["rounds", "chunk_bytes"])
def test_options_below_one_are_errors(option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        run_loss_bench(**{option: 0})


@needs_composition
def test_the_best_chunk_of_the_composition_is_searched_from_coarse_to_fine(monkeypatch):
    tried = []

    def take_times(works, rounds, on_start):
        tried.append([int(name) for name in works])
        return {name: (abs(int(name) - 200),) for name in works}

    monkeypatch.setattr(loss, "take_times", take_times)
    assert best_rows(replace(SMALL, num_tokens=1000)) == 256
    assert best_rows(replace(SMALL, num_tokens=50)) == 100
    assert tried == [[128, 512, 2000], [64, 128, 256], [100], [50, 100]]


def test_growth_is_compared_with_the_gradient_of_the_weight(monkeypatch):
    peaks = iter((Peak(100), Peak(700)))
    monkeypatch.setattr(loss, "peak_memory", lambda *_: next(peaks))
    growth = measure_growth((SMALL, replace(SMALL, vocab_size=300)), None)
    assert (growth.peak_bytes, growth.growth) == ((100, 700), 600)
    assert growth.gradient_growth == 4 * 100 * SMALL.embedding_size
    assert growth.allowed == growth.gradient_growth + 32 * 2**20


def test_growth_without_a_peak_is_unknown(monkeypatch):
    peaks = iter((Peak(100), Peak(None, "killed")))
    monkeypatch.setattr(loss, "peak_memory", lambda *_: next(peaks))
    growth = measure_growth((SMALL, SMALL), None)
    assert (growth.growth, growth.failure) == (None, "killed")


def test_a_run_measures_everyone_and_can_be_written_as_json(monkeypatch, without_children):
    monkeypatch.setattr(loss, "SHAPES", {"small": SMALL})
    shares = []
    result = run_loss_bench(rounds=2, on_progress=lambda share, text: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1.0
    (part,) = result.shapes
    names = [m.name for m in part.measurements]
    assert names[0] == "limit" and names[-1] == "softmax" and set(WAYS) < set(names)
    for measurement in part.measurements:
        assert len(measurement.times) == 2 or measurement.failure
    assert dumps(asdict(result))


def test_without_the_feature_in_torch_the_composition_is_skipped(monkeypatch, without_children):
    monkeypatch.setattr(loss, "SHAPES", {"small": SMALL})
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    (part,) = run_loss_bench(rounds=1).shapes
    composition = next(m for m in part.measurements if m.name == "composition")
    assert composition.failure == f"needs torch 2.13 or newer, got {torch.__version__}"
    assert composition.times == ()
