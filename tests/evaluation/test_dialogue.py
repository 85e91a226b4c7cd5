"""Smoothed sentence BLEU against sacrebleu's, its precision and recall, distinct n-grams."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.evaluation.dialogue import dialogue_score, distinct, sentence_bleu, words

SENTENCES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(SENTENCES, SENTENCES, st.integers(1, 4))
def test_sentence_bleu_is_that_of_sacrebleu(hypothesis, reference, order):
    metrics = pytest.importorskip("sacrebleu").metrics
    metric = metrics.BLEU(
        tokenize="none",
        smooth_method="add-k",
        smooth_value=1,
        effective_order=True,
        max_ngram_order=order,
    )
    want = metric.sentence_score(" ".join(hypothesis), [" ".join(reference)]).score / 100
    assert sentence_bleu(hypothesis, reference, order) == pytest.approx(want, abs=1e-9)


def test_precision_is_the_mean_and_recall_the_best():
    found = dialogue_score([["yes", "no way"]], ["yes"])
    assert found.recall[0] == 1 and found.precision[0] == 0.5
    assert found.recall == pytest.approx((1, 1, 1, 1))


def test_nothing_said_scores_nothing():
    found = dialogue_score([[""], []], ["yes", "no"])
    assert found.precision == (0, 0, 0, 0) and found.distinct == (0, 0)
    with pytest.raises(ValueError, match="as many, one at least, got 1 and 0"):
        dialogue_score([["x"]], [])


def test_distinct_counts_over_all_texts():
    texts = [words("I don't know."), words("I know")]
    assert texts[0] == ["i", "don", "'", "t", "know", "."]
    assert distinct(texts, 1) == 6 / 8
    assert distinct(texts, 2) == 6 / 6
    assert distinct([["i", "know"], ["i", "know"]], 2) == 1 / 2
