"""The text is the language's, the loss of the language is its own, and runs go on."""

import numpy as np
import pytest

from highrank.data import factorised
from highrank.experiments import learned_language
from highrank.experiments.learned_language import language_text, run_learned_language
from highrank.reports.learned_language import learned_language_table


def test_the_floor_is_the_entropy_of_the_language():
    language = factorised(vocab_size=30, num_contexts=16, rank=6, seed=2)
    text, loss = language_text(language, {"train": 100, "valid": 100, "test": 200_000})
    assert loss == pytest.approx(language.entropy, abs=0.02)
    assert len(text.split("test")) == 200_000 and len(text.vocabulary) == 30
    # Contexts are the groups of the last two words, whatever came before: the text is one chain.
    counts = np.bincount(text.split("test"), minlength=30) / 200_000
    np.testing.assert_allclose(counts, language.stationary @ language.prob, atol=0.01)


def test_two_networks_are_trained_and_compared(monkeypatch, tmp_path):
    sizes = {"train": 6_000, "valid": 500, "test": 1_000}
    monkeypatch.setattr(learned_language, "SIZES", sizes)
    monkeypatch.setattr(learned_language, "HEADS", {"softmax": 1, "mos": 2})
    shares = []
    result = run_learned_language(
        tmp_path, epochs=1, on_progress=lambda share, _: shares.append(share)
    )
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0, abs=0.05)
    assert [head.head for head in result.heads] == ["softmax", "mos"]
    for head in result.heads:
        assert head.optimum < head.excess
        assert head.perplexity == pytest.approx(result.floor * np.exp(head.excess))
    assert result.heads[1].optimum < result.heads[0].optimum
    again = run_learned_language(tmp_path, epochs=1)
    assert again.heads[1].excess == result.heads[1].excess
    assert learned_language_table(result).row_count == 2
