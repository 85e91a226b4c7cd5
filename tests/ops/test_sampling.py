"""Temperature and cuts against a slow version, row by row and word by word."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.ops.sampling import check_sampling, draw, tempered

TEMPERATURES = st.floats(0.1, 3.0)
TOP_K = st.none() | st.integers(1, 10)
TOP_P = st.none() | st.floats(0.05, 1.0)


def slow_tempered(log_p, temperature, top_k, top_p):
    """One row: the probability of each word that is left."""
    words = sorted(range(len(log_p)), key=lambda word: -log_p[word])[:top_k]
    total = sum(math.exp(log_p[word] / temperature) for word in words)
    share = {word: math.exp(log_p[word] / temperature) / total for word in words}
    kept, mass = [], 0.0
    for word in words:
        if top_p is None or mass < top_p:
            kept.append(word)
        mass += share[word]
    total = sum(share[word] for word in kept)
    return {word: share[word] / total for word in kept}


def rows(seed, num_rows=4, num_words=8):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, num_words, generator=generator, dtype=torch.float64)
    return (2 * logits).log_softmax(-1)


@given(seed=st.integers(0, 999), temperature=TEMPERATURES, top_k=TOP_K, top_p=TOP_P)
def test_agrees_with_the_slow_version(seed, temperature, top_k, top_p):
    log_p = rows(seed)
    got = tempered(log_p.view(2, 2, 8), temperature, top_k, top_p).exp().view(4, 8)
    want = torch.zeros_like(got)
    for row, words in enumerate(log_p.tolist()):
        for word, prob in slow_tempered(words, temperature, top_k, top_p).items():
            want[row, word] = prob
    torch.testing.assert_close(got, want)


@given(seed=st.integers(0, 999), top_p=st.floats(1e-9, 1.0))
def test_the_top_p_set_reaches_p_and_no_smaller_set_does(seed, top_p):
    log_p = rows(seed)
    kept = tempered(log_p, 1.0, top_p=top_p) > -torch.inf
    prob = log_p.exp().where(kept, 0.0)
    smallest = prob.where(kept, 2.0).min(-1).values
    assert kept.any(-1).all()
    assert (prob.sum(-1) >= top_p - 1e-12).all()
    assert (prob.sum(-1) - smallest < top_p).all()


def test_the_smallest_top_p_keeps_the_likeliest_word():
    log_p = tempered(torch.tensor([[0.1, 0.3, 0.2]]).log_softmax(-1), 1.0, top_p=1e-46)
    assert log_p.exp().tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("cuts", [{}, {"top_k": 8}, {"top_k": 100}, {"top_p": 1.0}], ids=str)
def test_temperature_one_without_a_cut_changes_nothing(cuts):
    torch.testing.assert_close(tempered(rows(0), 1.0, **cuts), rows(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.0, 1e-310, 3e-308, 1e-45, 2e-38, 1e-30, 1e-5])
def test_temperature_towards_zero_is_the_likeliest_word(temperature, dtype):
    log_p = rows(0).to(dtype) - 50
    got = tempered(log_p, temperature, top_k=5, top_p=0.9).exp()
    torch.testing.assert_close(got, torch.eye(8, dtype=dtype)[log_p.argmax(-1)])


def test_impossible_words_stay_impossible():
    log_p = rows(0).index_fill(1, torch.tensor([1, 2]), -torch.inf).log_softmax(-1)
    for options in ({"temperature": 0.5}, {"temperature": 3.0, "top_k": 7, "top_p": 0.999}):
        got = tempered(log_p, **options)
        assert (got[:, [1, 2]] == -torch.inf).all() and not got.isnan().any()


def test_equal_words_are_cut_to_exactly_k_and_a_certain_word_is_always_drawn():
    kept = tempered(torch.zeros(3, 10).log_softmax(-1), 1.0, top_k=4) > -torch.inf
    assert kept.sum(-1).tolist() == [4, 4, 4]
    log_p = torch.full((100, 5), -torch.inf)
    log_p[range(100), [i % 5 for i in range(100)]] = 0.0
    assert draw(log_p).tolist() == [i % 5 for i in range(100)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((-1.0, None, None), "temperature must be finite and at least 0, got -1.0"),
        ((math.inf, None, None), "temperature must be finite and at least 0, got inf"),
        ((math.nan, None, None), "temperature must be finite and at least 0, got nan"),
        ((1.0, 0, None), "top_k must be at least 1, got 0"),
        ((1.0, None, 0.0), "top_p must be above 0 and at most 1, got 0.0"),
        ((1.0, None, 1.5), "top_p must be above 0 and at most 1, got 1.5"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_sampling(*arguments)
