"""The neural cache against Grave et al.'s formula in loops, and what must be true of any cache."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from highrank.evaluation.cache import CacheSettings, History, with_cache
from highrank.evaluation.dynamic import DynamicSettings, score_dynamically
from highrank.evaluation.static import Scored, score

V = 17
SGD = DynamicSettings(rule="sgd", lr=0.5)


def scored_text(length, size=4, seed=0):
    """A random text with random probabilities, as one segment."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(7, (length,), generator=generator)
    log_p = torch.randn(length, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
    hidden = torch.randn(length, size, generator=generator, dtype=torch.float64)
    return Scored(target, log_p.gather(1, target[:, None])[:, 0], hidden)


def cut(segment, lengths):
    start = 0
    for length in (*lengths, len(segment.target)):
        yield Scored(*(x[start : start + length] for x in segment))
        start += length


def log_probs(segments):
    return torch.cat([segment.log_prob for segment in segments])


def slow(text, window, theta, weight):
    """Token by token, pair by pair."""
    found, (words, static, memory) = [], (x.numpy() for x in text)
    for t, (word, log_prob, hidden) in enumerate(zip(words, static, memory, strict=True)):
        pairs = range(max(0, t - window), t)
        scores = [theta * np.dot(hidden, h) for h in memory[pairs.start : pairs.stop]]
        hits = [s for s, i in zip(scores, pairs, strict=True) if words[i] == word]
        p = np.exp(log_prob)
        if scores:
            p_cache = np.exp(logsumexp(hits) - logsumexp(scores)) if hits else 0.0
            p = (1 - weight) * p + weight * p_cache
        found.append(np.log(p))
    return found


@pytest.mark.parametrize(
    ("window", "theta", "size"),
    [(1, 0.7, 4), (2, 0.7, 4), (13, 0.0, 4), (40, 0.7, 4), (300, 0.7, 4), (9, 3.0, 0)],
)
def test_probabilities_are_those_of_the_formula(window, theta, size):
    """Without hidden states, of size 0, all remembered tokens count alike."""
    text = scored_text(200, size)
    settings = CacheSettings(window=window, theta=theta, weight=0.3)
    found = log_probs(with_cache(cut(text, [33, 1, 70]), settings))
    np.testing.assert_allclose(found, slow(text, window, theta, 0.3), rtol=0, atol=1e-10)


def test_long_windows_are_computed_in_several_blocks_and_forget():
    text = scored_text(1000, seed=1)
    assert History(400).block == 50
    settings = CacheSettings(window=400, theta=0.3, weight=0.2)
    found = log_probs(with_cache(cut(text, [700, 5, 5]), settings))
    np.testing.assert_allclose(found, slow(text, 400, 0.3, 0.2), rtol=0, atol=1e-10)


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 80))
def test_how_the_text_is_cut_into_segments_does_not_matter(lengths, window):
    text = scored_text(150)
    settings = CacheSettings(window=window, theta=0.5, weight=0.4)
    segments = [s for s in cut(text, lengths) if len(s.target)]
    found = list(with_cache(segments, settings))
    assert [len(s.target) for s in found] == [len(s.target) for s in segments]
    want = log_probs(with_cache([text], settings))
    torch.testing.assert_close(log_probs(found), want, rtol=0, atol=1e-10)


def test_weight_zero_is_static(model, text):
    found = log_probs(with_cache(score(model, text), CacheSettings(weight=0.0)))
    assert torch.equal(found, log_probs(score(model, text)))


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("t", [0, 1, 30])
def test_probabilities_of_all_words_sum_to_one_whatever_the_target_is(t, is_dynamic, model, text):
    settings, text, total = CacheSettings(window=20, theta=2.0, weight=0.6), text[:40], 0.0
    for word in range(V):
        text[t + 1] = word
        segments = score_dynamically(model, text, SGD) if is_dynamic else score(model, text)
        total += log_probs(with_cache(segments, settings))[t].exp()
    assert total.item() == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_similarities_are_finite_and_half_precision_works(dtype):
    text = scored_text(100)
    text = Scored(text.target, text.log_prob.to(dtype), (100 * text.hidden).to(dtype))
    found = log_probs(with_cache([text], CacheSettings(window=30, theta=1e4, weight=0.1)))
    assert found.isfinite().all() and found.dtype == dtype
    assert (found >= text.log_prob + np.log(0.9) - 0.05).all()


def test_a_longer_window_does_not_need_more_operations(watch):
    counts = {}
    for window in (512, 2048):
        with watch() as seen:
            list(with_cache([scored_text(3000)], CacheSettings(window=window)))
        counts[window] = len(seen.sizes)
    assert counts[2048] < counts[512] < 1500


def test_closing_the_cache_closes_what_is_below_it(model, text):
    before = [p.detach().clone() for p in model.parameters()]
    below = score_dynamically(model, text, SGD)
    with contextlib.closing(with_cache(below, CacheSettings())) as segments:
        next(segments), next(segments)
        assert not torch.equal(model.backbone.embedding.weight, before[0])
    assert next(below, None) is None
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"theta": -0.1}, "theta must be at least 0 and finite, got -0.1"),
        ({"weight": 1.0}, "weight must be at least 0 and below 1, got 1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        CacheSettings(**values)
