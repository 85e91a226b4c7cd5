"""`bench eval` on a tiny vocabulary: what is compared is the same work."""

from dataclasses import replace

import pytest

from highrank.presets.small import ptb_small_mos
from highrank.studies.bench import evaluation, harness
from highrank.studies.bench.harness import Peak


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    config = ptb_small_mos()
    config = replace(config, model=replace(config.model, hidden_sizes=(12, 8), embedding_size=6))
    monkeypatch.setattr(evaluation, "ptb_small_mos", lambda: config)
    monkeypatch.setattr(evaluation, "VOCAB_SIZE", 50)
    monkeypatch.setattr(evaluation, "CACHE_WINDOW", 32)
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(2**20))


def test_variants_are_compared_with_a_baseline_on_the_same_tokens():
    fractions = []
    found = evaluation.run_evaluation_bench(
        rounds=1, quick=True, on_progress=lambda fraction, what: fractions.append(fraction)
    )
    assert fractions == sorted(fractions)
    dynamic, cache = found.comparisons
    assert (dynamic.max_ratio, dynamic.num_tokens) == (1.3, 250)
    assert (cache.max_ratio, cache.num_tokens) == (1.5, 64)
    for comparison in found.comparisons:
        first, *others = comparison.measurements
        assert first.name == comparison.baseline and first.time_ratios == {first.name: 1.0}
        assert others and all(m.time_ratios[first.name] > 0 for m in others)


def test_plain_passes_have_the_loss_of_static_evaluation_and_the_others_do_not():
    plain = evaluation.passes_of(40)()
    assert plain == pytest.approx(evaluation.static_of(40)(), rel=1e-5)
    for other in (evaluation.dynamic_of, evaluation.sgd_of, evaluation.cache_of):
        assert other(40)() != pytest.approx(plain, rel=1e-5)
