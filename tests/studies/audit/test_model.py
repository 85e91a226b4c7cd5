"""Contexts of a text: in order, each once, each with a history; and the bound of states."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from highrank.analysis.unargmaxable.problem import Box, Everywhere
from highrank.heads import Head, MixtureOfSoftmaxes, Softmax
from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel
from highrank.studies.audit.model import (
    choose_windows,
    loaded_language_model,
    read_contexts,
)


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


class Unbounded(AWDLSTM):
    """A backbone that states no bound of its hidden states."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.hidden_bound = None


@pytest.mark.parametrize("backbone, states", [(AWDLSTM, Box(1.0)), (Unbounded, Everywhere())])
def test_the_states_of_a_softmax_without_a_latent_layer_are_the_backbones(backbone, states):
    model = LanguageModel(backbone(9, 4, (6,)), Softmax(6, 9), tied=False).eval()
    loaded = loaded_language_model(model)
    assert loaded.layer.vectors.states == states
    assert loaded.hidden_states(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 6)


def test_a_tied_mixture_is_said_to_be_tied():
    head = MixtureOfSoftmaxes(6, 9, 3, 4)
    loaded = loaded_language_model(LanguageModel(AWDLSTM(9, 4, (6,)), head).eval())
    assert loaded.layer.facts.is_tied and loaded.layer.vectors is None


class Sigsoftmax(Head):
    """No mixture: softmax(z + log σ(z))."""

    def __init__(self):
        super().__init__(7, 13)
        self.weight = nn.Parameter(torch.randn(13, 7))

    def log_prob_from(self, features):
        z = features @ self.weight.T
        return (z + nn.functional.logsigmoid(z)).log_softmax(-1)


def test_a_head_that_is_no_mixture_is_audited_by_its_log_probabilities():
    model = LanguageModel(AWDLSTM(13, 6, (7,)), Sigsoftmax(), tied=False).eval()
    layer = loaded_language_model(model).layer
    hidden = torch.randn(20, 7)
    assert (layer.facts.kind, layer.bound.value, layer.mixture) == ("Sigsoftmax", None, None)
    (block,) = layer.log_probs(hidden, torch.float64).make_blocks()
    torch.testing.assert_close(block, model.head.double().log_prob(hidden.double()))
