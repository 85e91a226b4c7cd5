"""Contexts of a text: in order, each once, each with a history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank.studies.audit.model import choose_windows, read_contexts


@given(st.integers(3, 400), st.integers(2, 300), st.integers(2, 50))
def test_windows_give_contexts_in_order_each_once_with_a_history(num_tokens, wanted, window):
    windows = choose_windows(num_tokens, wanted, window)
    positions = [p for w in windows for p in range(w.first, w.end)]
    assert positions == sorted(set(positions))
    assert positions[0] >= 0 and positions[-1] <= num_tokens - 2
    assert len(positions) >= min(wanted, num_tokens - 1)
    assert all(w.end - w.start <= window for w in windows)
    assert all(w.first - w.start == (window // 2 if w.first else 0) for w in windows)


def test_windows_are_spread_over_the_text():
    firsts = [w.first for w in choose_windows(100_001, 1_000, 20)]
    assert len(firsts) == 100 and set(np.diff(firsts)) == {1_000}


def test_a_longer_history_has_the_same_contexts():
    short, long = (choose_windows(3_000, 500, 128, history) for history in (None, 512))
    assert [w[1:] for w in short] == [w[1:] for w in long]
    assert all(w.first - w.start == min(w.first, 512) for w in long)


@given(st.integers(3, 300), st.integers(2, 200))
def test_states_belong_to_their_positions(num_tokens, wanted):
    tokens = list(range(1_000, 1_000 + num_tokens))
    found = read_contexts(lambda t: t[..., None].double(), tokens, wanted, window=14)
    assert len(found.positions) == min(wanted, num_tokens - 1)
    assert found.hidden[:, 0].tolist() == [1_000 + p for p in found.positions]


@pytest.mark.parametrize(
    "num_tokens, wanted, window, message",
    [
        (2, 5, 8, "the text must have at least 3 tokens, got 2"),
        (9, 1, 8, "contexts must be at least 2, got 1"),
        (9, 5, 1, "window must be at least 2, got 1"),
    ],
)
def test_impossible_windows_are_refused(num_tokens, wanted, window, message):
    with pytest.raises(ValueError, match=message):
        choose_windows(num_tokens, wanted, window)
