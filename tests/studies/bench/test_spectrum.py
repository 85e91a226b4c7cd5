"""The benchmark of an audit, at a tiny size and without measuring memory."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from highrank.studies.bench import harness, spectrum
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.spectrum import (
    METHODS,
    QUICK,
    TINY,
    mixture_head,
    prepare,
    run_audit_bench,
    spectrum_error,
)


@pytest.fixture
def tiny(monkeypatch):
    measured = []

    def peak_memory(work, warm_up):
        measured.append(work.args[0])
        return Peak(len(measured))

    monkeypatch.setattr(harness, "peak_memory", peak_memory)
    monkeypatch.setattr(spectrum, "FULL", TINY)
    monkeypatch.setattr(spectrum, "LINEAR_CHECK", TINY)
    return measured


def test_every_method_is_timed_and_compared_with_the_svd(tiny):
    result = run_audit_bench(rounds=2)
    assert [m.name for m in result.measurements] == list(METHODS)
    assert all(len(m.times) == 2 and m.time_ratios["svd"] > 0 for m in result.measurements)
    assert tiny == [name for name in METHODS if name != "svd"]
    svd, stable, fast, *_ = result.measurements
    assert svd.value == pytest.approx(stable.value) == pytest.approx(fast.value)
    assert (svd.peak_bytes, stable.peak_bytes, result.size) == (None, 1, TINY)
    json.dumps(asdict(result), allow_nan=False)


def test_errors_are_small_and_stated(tiny):
    errors = run_audit_bench().errors
    assert set(errors) == {"svd", "stable", "fast", "linear"}
    assert errors["svd"].absolute == 0
    assert max(errors["stable"].absolute, errors["linear"].absolute) <= 1e-12
    assert 1e-12 < errors["fast"].floor < 1e-6 and errors["fast"].absolute <= errors["fast"].floor


def test_an_error_is_the_largest_and_missing_values_are_zeros():
    exact = prepare("svd", TINY)()
    values = exact.values[:-1].clone()
    values[3] *= 1.25
    error = spectrum_error(replace(exact, values=values), exact)
    numbers = exact.values.numpy()
    assert error.relative == pytest.approx(1.0)
    assert error.absolute == pytest.approx(max(0.25 * numbers[3], numbers[-1]) / numbers[0])


def test_the_svd_is_that_of_the_whole_matrix():
    work = prepare("svd", TINY)
    head, hidden = work.args
    log_prob = head.double().log_prob(hidden.double()).detach().numpy()
    want = np.linalg.svd(log_prob, compute_uv=False)
    np.testing.assert_allclose(work().values, want, atol=1e-12 * want[0])


def test_progress_goes_up_by_what_things_cost(tiny):
    shown = []
    run_audit_bench(on_progress=lambda fraction, text: shown.append((fraction, text)))
    fractions = [fraction for fraction, _ in shown]
    assert fractions == sorted(fractions) and fractions[0] == 0 and fractions[-1] < 1
    assert shown[0][1] == "memory of stable" and "time of svd" in dict(map(reversed, shown))


def test_inputs_are_the_same_in_every_process():
    (head, hidden), (other, others) = mixture_head(QUICK), mixture_head(QUICK)
    assert torch.equal(hidden, others) and torch.equal(head.weight, other.weight)


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        run_audit_bench(rounds=0)
