"""Predictors: any model as hidden states and a head, and the contexts of a text."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.data.corpus import Recipe
from highrank.data.vocabulary import Vocabulary
from highrank.heads import MixtureOfSoftmaxes, head_class
from highrank.models import AWDLSTM, LanguageModel
from highrank.predictor import (
    LanguageModelPredictor,
    RunModel,
    choose_windows,
    prompt_tokens,
    read_contexts,
)

V = 30


def make(head):
    model = LanguageModel(AWDLSTM(V, 6, (9, 7)), head).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


HEADS = {
    "mos": lambda: MixtureOfSoftmaxes(7, V, 3, 6),
    "pointer": lambda: head_class("mos+pointer")(
        7, V, num_components=2, embedding_size=6, num_states=8, key_size=5
    ),
}


@torch.no_grad()
def along(model, tokens, precision):
    """log p after each token of one stream, from one forward pass, (T, V)."""
    read = model.read(tokens[:, None], model.initial_state(1))
    past = read.past
    if past:
        first, memory = past["state"]
        past["state"] = first, memory._replace(key=memory.key.to(precision))
    head = copy.deepcopy(model.head).to(precision)
    return head.log_prob(read.hidden.to(precision), **past)[:, 0]


@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_a_text_may_be_read_in_parts(name):
    model, tokens = make(HEADS[name]()), torch.randint(V, (12, 1))
    predictor, found = LanguageModelPredictor(model), []
    state = predictor.initial_state(1)
    for part in (tokens[:5], tokens[5:]):
        hidden, past, state = predictor.read(part, state)
        found.append(predictor.head.log_prob(hidden, **past)[:, 0])
    torch.testing.assert_close(torch.cat(found), along(model, tokens[:, 0], torch.float32))


@pytest.mark.parametrize("name", HEADS)
def test_hidden_states_alone_give_the_log_probabilities_of_the_stream(name):
    model, tokens, precision = make(HEADS[name]()), torch.randint(V, (2, 40)), torch.float64
    predictor = LanguageModelPredictor(model).without_state()
    hidden = predictor.hidden_states(tokens)  # (2, 40, D)
    with torch.no_grad():
        head = copy.deepcopy(predictor.head).to(precision)
        found = head.log_prob(hidden.to(precision))
    want = torch.stack([along(model, row, precision) for row in tokens])
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def test_it_has_the_facts_of_the_model():
    model = make(HEADS["pointer"]())
    for found in (LanguageModelPredictor(model), LanguageModelPredictor(model).without_state()):
        assert found.num_parameters == sum(p.numel() for p in model.parameters())
        assert (found.is_tied, found.dtype) == (True, torch.float32)
    assert LanguageModelPredictor(model).hidden_bound == 1.0


def test_a_run_encodes_and_decodes_as_its_vocabulary(tmp_path):
    header = SimpleNamespace(recipe=Recipe(tokenizer="words", split=""))
    vocabulary = Vocabulary(("<unk>", "<eos>", "the", "cat"))
    corpus = SimpleNamespace(header=header)
    run = RunModel(SimpleNamespace(folder=tmp_path, vocabulary=vocabulary, corpus=corpus))
    assert run.name == str(tmp_path) and run.max_window is None
    assert run.encode("the dog\n cat") == [2, 0, 1, 3]
    assert run.token(3) == "cat"


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "tokens"),
    [
        ("characters", "a\n ", ["a", "<eos>", " "]),
        ("characters", " ", [" "]),
        ("characters", "a\n", ["a", "<eos>"]),
        ("words", "the cat\n ", ["the", "cat", "<eos>"]),
        ("whitespace", "the\n ", ["the", "<eos>"]),
        ("whitespace", "the\n\n", ["the", "<eos>", "<eos>"]),
        ("words", "", []),
    ],
)
def test_a_prompt_ends_a_line_only_with_a_newline(tokenizer, prompt, tokens):
    assert prompt_tokens(prompt, Recipe(tokenizer=tokenizer, split="any")) == tokens


@given(st.integers(3, 400), st.integers(2, 300), st.integers(2, 50))
def test_windows_give_contexts_in_order_each_once_with_a_history(num_tokens, wanted, window):
    windows = choose_windows(num_tokens, wanted, window)
    positions = [p for w in windows for p in range(w.first, w.end)]
    assert positions == sorted(set(positions))
    assert positions[0] >= 0 and positions[-1] <= num_tokens - 2
    assert len(positions) >= min(wanted, num_tokens - 1)
    assert all(w.end - w.start <= window for w in windows)
    assert all(w.first - w.start == (window // 2 if w.first else 0) for w in windows)


def test_windows_are_spread_over_the_text_and_a_history_changes_no_context():
    firsts = [w.first for w in choose_windows(100_001, 1_000, 20)]
    assert len(firsts) == 100 and set(np.diff(firsts)) == {1_000}
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
