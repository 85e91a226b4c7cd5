"""Networks learn an exact language, are compared with its own loss, and runs are resumed."""

from dataclasses import replace

import pytest
from rich.console import Console

from highrank.studies.demo import learned
from highrank.studies.demo.learned import SOFTMAX, run_learned_language
from highrank.studies.demo.page import learned_language_table


@pytest.fixture
def small(monkeypatch):
    sizes = {"train": 6_000, "valid": 500, "test": 1_000}
    monkeypatch.setattr(learned, "SIZES", sizes)
    variants = {"softmax": SOFTMAX, "mos": replace(SOFTMAX, num_components=2)}
    monkeypatch.setattr(learned, "VARIANTS", variants)


@pytest.mark.usefixtures("small")
def test_networks_are_trained_and_compared(tmp_path):
    done = []
    result = run_learned_language(tmp_path, epochs=1, on_progress=lambda x, _: done.append(x))
    assert done == sorted(done) and done[-1] == pytest.approx(1.0, abs=0.05)
    assert [head.head for head in result.heads] == ["softmax", "mos"]
    assert [head.num_components for head in result.heads] == [1, 2]
    assert result.heads[0].specialisation is None and 0 <= result.heads[1].specialisation < 0.01
    for head in result.heads:
        assert head.optimum < head.excess
    assert result.heads[1].optimum < result.heads[0].optimum
    again = run_learned_language(tmp_path, epochs=1)
    # Trained anew, it would not take the same time.
    assert again.heads == result.heads
    console = Console(width=80)
    with console.capture() as captured:
        console.print(learned_language_table(result))
    text = captured.get()
    assert f"{result.heads[1].perplexity:.3f}" in text and "softmax" in text and "…" not in text


@pytest.mark.usefixtures("small")
def test_heads_may_be_given_equal_time_instead_of_equal_epochs(tmp_path):
    result = run_learned_language(tmp_path, budget=1.0)
    assert (result.epochs, result.budget) == (None, 1.0)
    assert all(head.num_tokens > 0 for head in result.heads)
    # Runs of another length lie beside them.
    run_learned_language(tmp_path, epochs=1)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}-100-{length}-seed0" for name in ("softmax", "mos") for length in ("1e", "1s")
    }
