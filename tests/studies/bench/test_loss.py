from dataclasses import asdict, replace
from json import dumps

import pytest
import torch
import torch.nn.functional as F

from highrank.studies.bench import baselines, harness, loss
from highrank.studies.bench.baselines import (
    SHAPES,
    TINY,
    mixture_inputs,
    original_loss,
    package_loss,
)
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.loss import (
    IMPLEMENTATIONS,
    allowed_growth,
    best_rows,
    check_losses,
    measure_growth,
    run_loss_bench,
    select_shapes,
)

SMALL = replace(TINY, num_tokens=30, vocab_size=200)
needs_composition = pytest.mark.skipif(
    baselines.missing_composition() is not None, reason="torch is older than 2.13"
)


@pytest.fixture
def without_children(monkeypatch):
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(2**20))


def test_losses_that_differ_are_found_out():
    with torch.no_grad():
        right = package_loss("fused", None, mixture_inputs(SMALL)).item()
    check_losses(SMALL, {"fused": right, "chunked": right * 1.00005, "softmax": 1.0})
    with pytest.raises(RuntimeError, match="loss of chunked at tiny must be .*, got"):
        check_losses(SMALL, {"fused": right, "chunked": right * 1.001})


def test_the_original_is_expected_to_differ_by_its_epsilon(monkeypatch):
    for module in (loss, baselines):
        monkeypatch.setattr(module, "EPSILON", 0.01)
    with torch.no_grad():
        inputs = mixture_inputs(SMALL)
        right, original = package_loss("fused", None, inputs).item(), original_loss(inputs).item()
    notes = check_losses(SMALL, {"original": original})
    assert f"changes the loss by {original - right:.1g}"[:-1] in notes["original"]
    with pytest.raises(RuntimeError, match="loss of original"):
        check_losses(SMALL, {"original": right})


def test_shapes_are_chosen_by_name():
    assert [shape.name for shape in select_shapes((), quick=False)] == list(SHAPES)
    assert select_shapes(("wt2", "ptb", "wt2"), quick=False) == [SHAPES["wt2"], SHAPES["ptb"]]
    assert select_shapes((), quick=True) == [replace(SHAPES["ptb"], num_tokens=84)]
    with pytest.raises(ValueError, match="shapes must be among ptb, wt2, .*, one-gpt2, got foo"):
        select_shapes(("ptb", "foo"), quick=False)


@needs_composition
def test_the_best_chunk_of_the_composition_is_searched(monkeypatch):
    tried = []

    def take_times(works, rounds):
        tried.append([int(name) for name in works])
        return {name: (abs(int(name) - 200),) for name in works}

    monkeypatch.setattr(harness, "take_times", take_times)
    assert best_rows(replace(SMALL, num_tokens=1000)) == 256
    assert best_rows(replace(SMALL, num_tokens=50)) == 100
    assert tried == [[64, 128, 256, 512, 1024, 2000], [64, 100]]


def test_growth_is_that_of_fused_and_compared_with_the_gradient_of_the_weight(monkeypatch):
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, _: Peak(prepare.args[-1]))
    shapes = (SMALL, replace(SMALL, vocab_size=300))
    assert measure_growth(shapes, None) == tuple(map(Peak, shapes))
    assert allowed_growth(shapes) == 4 * 100 * SMALL.embedding_size + 32 * 2**20


def test_a_run_measures_all_variants_and_can_be_written_as_json(monkeypatch, without_children):
    monkeypatch.setattr(loss, "SHAPES", {"small": SMALL})
    fractions = []
    result = run_loss_bench(rounds=2, on_progress=lambda fraction, text: fractions.append(fraction))
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    (group,) = result.groups
    names = [m.name for m in group.measurements]
    assert names[0] == "matmul" and names[-1] == "softmax" and set(IMPLEMENTATIONS) < set(names)
    for measurement in group.measurements:
        assert len(measurement.times) == 2 or measurement.failure
    assert dumps(asdict(result))


def test_without_the_feature_in_torch_the_composition_is_skipped(monkeypatch, without_children):
    monkeypatch.setattr(loss, "SHAPES", {"small": SMALL})
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    (group,) = run_loss_bench(rounds=1).groups
    composition = next(m for m in group.measurements if m.name == "composition")
    assert composition.failure == f"needs torch 2.13 or newer, got {torch.__version__}"
    assert composition.times == ()
