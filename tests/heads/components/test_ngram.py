"""The n-gram component: the table of the training split, leave-one-out where that is read."""

import numpy as np
import pytest
import torch

from highrank import ngram
from highrank.heads.components.ngram import NGramComponent, table_size

T, B, V, ORDER = 6, 3, 7, 3
TEXT = np.random.default_rng(0).choice(V, 60, p=np.arange(1, V + 1) / 28)


@pytest.fixture
def component():
    found = NGramComponent(4, V, ngram_order=ORDER)
    found.fit(TEXT, ())
    return found


def window(start=0, length=T):
    """Tokens (T, B) of the training split in three streams, and their positions."""
    position = torch.arange(start, start + length)[:, None] + torch.tensor([0, 20, 40])
    return torch.from_numpy(TEXT)[position], position


def hidden(tokens):
    return torch.zeros(*tokens.shape, 4, dtype=torch.float64)


def test_probabilities_are_those_of_the_table(component):
    tokens, _ = window()
    inputs = component.inputs(hidden(tokens), tokens, None)
    log_p = component.log_prob(inputs, torch.zeros(T, B, 1))  # (T, B, V)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(T, B).double())
    table = ngram.build(TEXT, V, ORDER).table
    for b in range(B):
        want = table.score(tokens[:, b].numpy())
        found = log_p[:-1, b].gather(-1, tokens[1:, b, None])[:, 0]
        np.testing.assert_allclose(found, want)
    other = torch.randint(V, (T, B))
    found = component.log_prob_of(inputs, other)
    torch.testing.assert_close(found, log_p.gather(-1, other[..., None]))


def test_no_cut_into_windows_changes_a_row(component):
    tokens, position = window()
    whole = component.inputs(hidden(tokens), tokens, None, position)
    state, parts = component.initial_state(B), []
    for rows in (slice(0, 1), slice(1, 2), slice(2, T)):
        parts.append(component.inputs(hidden(tokens[rows]), tokens[rows], state, position[rows]))
        state = component.advance(hidden(tokens[rows]), tokens[rows], state)
    for one, *others in zip(whole, *parts, strict=True):
        torch.testing.assert_close(torch.cat(others), one)


def test_the_training_split_is_left_out_in_every_mode(component):
    """By position: the same tokens of another text are counted as they are."""
    left_out = ngram.build(TEXT, V, ORDER).left_out
    tokens, position = window()
    target = torch.from_numpy(TEXT)[position + 1]
    for mode in (True, False):
        inputs = component.train(mode).inputs(hidden(tokens), tokens, None, position)
        found = component.log_prob_of(inputs, target)[..., 0]
        np.testing.assert_allclose(found, left_out.log_prob[position + 1])
        features = component.gate_features(inputs)
        assert features.shape == (T, B, component.num_features)
        np.testing.assert_allclose(features[..., : ORDER - 1], left_out.backoff[position + 1])
    counted = component.inputs(hidden(tokens), tokens, None)
    assert (component.log_prob_of(counted, target)[..., 0] > found).any()
    mixed = position.clone()
    mixed[:, 1] = -1
    inputs = component.inputs(hidden(tokens), tokens, None, mixed)
    want = torch.where(mixed >= 0, found, component.log_prob_of(counted, target)[..., 0])
    torch.testing.assert_close(component.log_prob_of(inputs, target)[..., 0], want)


def test_what_is_left_out_is_a_distribution(component):
    tokens, position = window()
    position[0] = -1
    inputs = component.inputs(hidden(tokens), tokens, None, position)
    log_p = component.log_prob(inputs, torch.zeros(T, B, 1))
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(T, B).double())
    for target in (torch.from_numpy(TEXT)[window()[1] + 1], torch.randint(V, (T, B))):
        found = component.log_prob_of(inputs, target)
        torch.testing.assert_close(found, log_p.gather(-1, target[..., None]))


def test_positions_of_other_tokens_are_refused(component):
    tokens, position = window()
    for wrong in (position + 1, position + 60):
        with pytest.raises(ValueError, match="position must be that of tokens in the training"):
            component.inputs(hidden(tokens), tokens, None, wrong)
    last = torch.tensor([[len(TEXT) - 1]])
    tokens = torch.tensor([[TEXT[-1]]])
    assert component.inputs(hidden(tokens), tokens, None, last).position.item() == -1


def test_tables_are_saved_and_of_the_right_order(component, tmp_path):
    component.save_data(tmp_path)
    other = NGramComponent(4, V, ngram_order=ORDER)
    tokens, _ = window()
    gate = torch.zeros(T, B, 1)
    uniform = other.log_prob(other.inputs(hidden(tokens), tokens, None), gate)
    torch.testing.assert_close(uniform.exp(), torch.full((T, B, V), 1 / V).double())
    other.load_data(tmp_path)
    found, want = (
        c.log_prob(c.inputs(hidden(tokens), tokens, None), gate) for c in (other, component)
    )
    torch.testing.assert_close(found, want)
    with pytest.raises(ValueError, match="must be of order 2 and 7 tokens, got 3 and 7"):
        NGramComponent(4, V, ngram_order=2).load_data(tmp_path)
    with pytest.raises(ValueError, match=r"ngram.json could not be read"):
        other.load_data(tmp_path / "nowhere")


def test_new_tokens_have_a_count_of_zero_and_old_ones_go(component):
    for size in (V + 2, V - 2):
        component.resize(size)
        text = TEXT[size > TEXT]
        want = ngram.build(text, size, ORDER).table.score(text)
        np.testing.assert_array_equal(component.data.table.score(text), want)
    component.data = component.data._replace(left_out=None)
    with pytest.raises(ValueError, match="cannot be resized"):
        component.resize(V)


def test_a_long_text_is_pruned_and_the_table_is_counted_beside_the_parameters(monkeypatch):
    monkeypatch.setattr("highrank.heads.components.ngram.PRUNED_FROM", (50, 100))
    text, sizes = np.random.default_rng(0).integers(0, V, 120), []
    for length, want in ((49, 1), (50, 2), (120, 3)):
        component = NGramComponent(4, V)
        component.fit(text[:length], ())
        size = table_size(torch.nn.ModuleList([component]))
        assert size == ngram.build(text[:length], V, 5, want).table.size
        sizes.append(size)
    assert str(sizes[0]).endswith("n-grams, 0 MB") and sizes[2].num_ngrams < sizes[0].num_ngrams
    assert table_size(torch.nn.Linear(1, 1)) is None
