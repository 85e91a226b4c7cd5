"""The n-gram model against dictionaries that count one occurrence after the other."""

import json
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank import ngram
from highrank.data import prepare_known
from highrank.ngram.counts import FALLBACK, count_orders

V = 5


class Dictionaries:
    """Modified Kneser–Ney as it is defined, over occurrences (context, token).

    Every occurrence has n - 1 tokens before it, None at the beginning of the text.
    """

    def __init__(self, text, order, min_count=1, without=None, discounts=None):
        padded = [None] * (order - 1) + list(text)
        grams = [tuple(padded[i : i + order]) for i in range(len(text)) if i != without]
        raw = [Counter(gram[-k:] for gram in grams) for k in range(1, order + 1)]
        counts = [raw[-1]]
        for k in range(order - 1, 0, -1):
            counts.insert(0, Counter(gram[1:] for gram in raw[k]))
        # What reaches beyond the beginning is never looked up, and not among the estimates.
        self.counts = [Counter({g: c for g, c in n.items() if None not in g}) for n in counts]
        self.raw, self.min_count = raw, min_count
        self.discounts = discounts or [self.estimate(n) for n in self.counts]

    @staticmethod
    def estimate(counts):
        n = Counter(counts.values())
        if not all(n[c] for c in (1, 2, 3, 4)):
            return FALLBACK
        y = n[1] / (n[1] + 2 * n[2])
        found = [c - (c + 1) * y * n[c + 1] / n[c] for c in (1, 2, 3)]
        return tuple(found) if all(0 < d <= c for c, d in enumerate(found, 1)) else FALLBACK

    def kept(self, gram):
        k, count = len(gram), self.counts[len(gram) - 1][gram]
        if count == 0 or (k > 2 and self.raw[k - 1][gram] < self.min_count):
            return 0.0
        return count - self.discounts[k - 1][min(count, 3) - 1]

    def backoff(self, context):
        after = [(*context, w) for w in range(V)]
        total = sum(self.counts[len(context)][gram] for gram in after)
        return 1 - sum(map(self.kept, after)) / total if total else 1.0

    def prob(self, context, token):
        lower = self.prob(context[1:], token) if context else 1 / V
        total = sum(self.counts[len(context)][(*context, w)] for w in range(V))
        share = self.kept((*context, token)) / total if total else 0.0
        return share + self.backoff(context) * lower


# Long runs of one token as well, so that counts of 1, 2, 3 and 4 are there.
texts = st.lists(st.integers(0, V - 1), max_size=60) | st.integers(0, 2**32).map(
    lambda seed: np.random.default_rng(seed).choice(V, 80, p=(0.5, 0.3, 0.1, 0.1, 0.0)).tolist()
)
orders, min_counts = st.integers(1, 4), st.integers(1, 3)


def array(tokens):
    return np.array(tokens, dtype=np.int64)


@given(texts, texts, orders, min_counts)
def test_probabilities_are_those_of_counting_one_by_one(text, other, order, min_count):
    table = ngram.build(array(text), V, order, min_count).table
    slow = Dictionaries(text, order, min_count)
    contexts = table.contexts(array(other))
    every = table.log_prob(contexts)
    assert every.shape == (len(other), V)
    np.testing.assert_allclose(np.exp(every).sum(-1), 1, atol=1e-12)
    backoffs = table.backoff(contexts)
    for i in range(min(len(other), 9)):
        before = [tuple(other[i + 1 - k : i + 1]) for k in range(min(order, i + 2))]
        want = [slow.prob(before[-1], w) for w in range(V)]
        np.testing.assert_allclose(np.exp(every[i]), want, rtol=1e-11, atol=1e-14)
        want = [slow.backoff(context) for context in before[1:]]
        np.testing.assert_allclose(backoffs[i], want + [1.0] * (order - len(before)), atol=1e-12)
    if other:
        picked = [every[i, w] for i, w in enumerate(other[1:])]
        np.testing.assert_allclose(table.score(array(other)), picked, rtol=1e-12)


@given(texts, orders, min_counts)
def test_what_is_left_out_was_not_counted(text, order, min_count):
    found = ngram.build(array(text), V, order, min_count).left_out
    discounts = Dictionaries(text, order).discounts
    for i in range(0, len(text), 1 + len(text) // 16):
        slow = Dictionaries(text, order, min_count, without=i, discounts=discounts)
        before = tuple(text[max(0, i + 1 - order) : i])
        want = slow.prob(before, text[i])
        np.testing.assert_allclose(np.exp(found.log_prob[i]), want, rtol=1e-11)
        lengths = range(1, len(before) + 1)
        gammas = [slow.backoff(before[len(before) - k :]) for k in lengths]
        gammas += [1.0] * (order - 1 - len(gammas))
        np.testing.assert_allclose(found.backoff[i], gammas, rtol=1e-6)


def test_discounts_are_estimated_where_they_can_be():
    """Both kinds occur above only if texts of both kinds are drawn."""
    text = np.random.default_rng(0).choice(V, 80, p=(0.5, 0.3, 0.1, 0.1, 0.0))
    found = [tuple(order.discounts[1:]) for order in count_orders(text, V, 4)]
    assert found[0] == FALLBACK and FALLBACK not in found[2:]
    assert found == [tuple(d) for d in Dictionaries(text.tolist(), 4).discounts]


@settings(max_examples=30)
@given(texts, orders, min_counts, st.integers(1, 9))
def test_a_text_counted_in_blocks_on_disk_is_the_same_to_the_bit(text, order, min_count, block):
    want = ngram.build(array(text), V, order, min_count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("highrank.ngram.arrays.BLOCK", block)
        patch.setattr("highrank.ngram.arrays.MOST_IN_MEMORY", 2)
        patch.setattr("highrank.ngram.kneser_ney.LEFT_OUT_BLOCK", block)
        found = ngram.build(array(text), V, order, min_count)
    tables = (found.table, want.table)
    for name in ("keys", "shares", "backoffs"):
        for one, other in zip(*(getattr(table, name) for table in tables), strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(found.left_out, want.left_out, strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_does_not_grow_with_the_text(monkeypatch):
    """Only arrays that numpy has in memory are counted; those in files are not among them."""
    monkeypatch.setattr("highrank.ngram.arrays.BLOCK", 1_000)
    monkeypatch.setattr("highrank.ngram.arrays.MOST_IN_MEMORY", 1_000)
    monkeypatch.setattr("highrank.ngram.kneser_ney.LEFT_OUT_BLOCK", 1_000)
    peaks = []
    for size in (5_000, 20_000):
        text = np.random.default_rng(0).integers(0, 500, size)
        tracemalloc.start()
        ngram.build(text, 500, 4)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_a_token_that_is_none_is_never_in_a_context():
    table = ngram.build(array([0, 1, 2, 0, 1, 2]), V, 3).table
    tokens = array([[-1, 0, -100], [1, 1, V]])  # (T, 3)
    found = table.contexts(tokens)
    np.testing.assert_array_equal(found[:, 1, 0], [0, 1, -1])
    assert found[2, 1, 1] >= 0 and (found[1:, :, 2] == -1).all()
    assert np.isfinite(table.log_prob_of(found, tokens)).all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("text", [[0, 1, 2, 0, 1, 3, 0], [0]])
def test_a_saved_model_is_the_same(text, training, tmp_path):
    model = ngram.build(array(text), V, 3)
    model = model if training else model._replace(left_out=None)
    ngram.save(tmp_path / "ngram", model)
    found = ngram.load(tmp_path / "ngram")
    assert ngram.read_size(tmp_path / "ngram") == found.table.size == model.table.size
    tokens = array([0, 1, 4, 0, 1, 2])
    np.testing.assert_array_equal(found.table.score(tokens), model.table.score(tokens))
    assert (found.left_out is None) is not training
    for one, other in zip(found.left_out or (), model.left_out or (), strict=True):
        np.testing.assert_array_equal(one, other)


def test_damaged_files_are_refused(tmp_path):
    folder = tmp_path / "ngram"
    ngram.save(folder, ngram.build(array([0, 1, 2, 0, 1, 3]), V, 3))
    header = json.loads((folder / "ngram.json").read_text())
    for change in ({"sizes": []}, {"sizes": [V, 3]}, {"sha256": {}}, {"version": 0}):
        (folder / "ngram.json").write_text(json.dumps(header | change))
        with pytest.raises(ValueError, match="must"):
            ngram.load(folder)
    (folder / "ngram.json").write_text(json.dumps(header))
    for file in sorted(folder.glob("*.npy")):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match=f"{file.name} must have sha256"):
            ngram.load(folder)
        file.write_bytes(content)
    assert ngram.load(folder).table.order == 3


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ([0, 5], {}, "from 0 to 4, got 0 to 5"),
        ([-1, 0], {}, "from 0 to 4, got -1 to 0"),
        ([0.5], {}, "whole numbers, got float64"),
        ([0], {"order": 0}, "order must be at least 1, got 0"),
        ([0], {"min_count": 0}, "min_count must be at least 1, got 0"),
    ],
)
def test_texts_and_orders_that_cannot_be_are_refused(tokens, options, message):
    with pytest.raises(ValueError, match=message):
        ngram.build(np.array(tokens), V, **options)


def test_penn_treebank_at_order_5(tmp_path):
    """147.7 and 141.1: Chen and Goodman's model, as counted outside of this package."""
    folder = os.environ.get("HIGHRANK_TEST_DATA")
    if folder is None:
        pytest.skip("HIGHRANK_TEST_DATA is not set")
    corpus = prepare_known("penn-treebank", source=Path(folder), cache=tmp_path).corpus
    table = ngram.build(corpus.split("train"), len(corpus.vocabulary), 5).table
    found = [np.exp(-table.score(corpus.split(name)).mean()) for name in ("valid", "test")]
    np.testing.assert_allclose(found, [147.7, 141.1], atol=0.3)
    contexts = table.contexts(array(corpus.split("test")[:40]))
    np.testing.assert_allclose(np.exp(table.log_prob(contexts)).sum(-1), 1, atol=1e-12)
