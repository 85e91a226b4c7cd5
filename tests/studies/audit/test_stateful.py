"""A head that looks back, audited along a text: its log-probabilities, and a long history."""

import pytest
import torch

from highrank.analysis.log_probs import matrix_log_probs
from highrank.analysis.svd import singular_values
from highrank.heads import ConstantComponents, Pointer
from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel
from highrank.studies.audit.layer import audit_rank, plan_spectrum
from highrank.studies.audit.model import choose_windows, loaded_language_model, read_contexts

V = 30


@pytest.fixture
def model():
    head = Pointer(7, V, 2, 6, num_states=8, key_size=5)
    model = LanguageModel(AWDLSTM(V, 6, (9, 7)), head).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.7)
    return model


@torch.no_grad()
def along(model, tokens, precision):
    """log p after each token of one stream, from one forward pass, (M, V)."""
    read = model.read(tokens[:, None], model.initial_state(1))
    hidden, past = read.hidden.to(precision), read.past
    past["state"] = past["state"]._replace(key=past["state"].key.to(precision))
    return model.head.to(precision).log_prob(hidden, **past)[:, 0]


@pytest.mark.parametrize("precision", [torch.float32, torch.float64], ids=str)
def test_its_log_probabilities_are_those_of_the_stream(model, precision):
    tokens = torch.randint(V, (40,))
    loaded = loaded_language_model(model)
    assert loaded.layer.facts.is_tied and loaded.layer.facts.kind == "pointer"
    assert loaded.layer.facts.has_bias and loaded.layer.facts.context_size == 6
    contexts = read_contexts(loaded.hidden_states, tokens.tolist(), 39, window=20, history=40)
    found = torch.cat(list(loaded.layer.log_probs(contexts.hidden, precision).make_blocks()))
    assert found.dtype == precision
    want = along(model, tokens, precision)[contexts.positions]
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def test_its_rank_is_measured_and_no_bound_is_claimed(model):
    tokens = torch.randint(V, (200,))
    loaded = loaded_language_model(model)
    hidden = read_contexts(loaded.hidden_states, tokens.tolist(), 150, history=200).hidden
    plan = plan_spectrum(loaded.layer, len(hidden), quick=False, budget=1 << 30)
    facts = audit_rank(loaded.layer, hidden, plan, lambda *_: None)
    assert facts.bound is None and loaded.layer.vectors is None and loaded.layer.mixture is None
    matrix = torch.cat(list(loaded.layer.log_probs(hidden, torch.float64).make_blocks()))
    (*_, want) = singular_values(matrix_log_probs(matrix), "stable")
    torch.testing.assert_close(torch.tensor(facts.singular_values), want.values.float())
    assert facts.measures["numerical_rank_float32"] == V


def test_random_weights_meet_the_features_of_the_model(model):
    loaded = loaded_language_model(model)
    hidden = loaded.hidden_states(torch.randint(V, (1, 20)))[0]
    blocks = [
        torch.cat(list(layer.log_probs(hidden, torch.float64).make_blocks()))
        for layer in (loaded.layer, loaded.layer.randomised(), loaded.layer.randomised())
    ]
    assert torch.equal(blocks[1], blocks[2]) and not torch.allclose(blocks[0], blocks[1])
    torch.testing.assert_close(blocks[1].exp().sum(-1), torch.ones(20).double())


def test_a_head_may_have_a_parameter_without_numbers():
    model = LanguageModel(AWDLSTM(V, 6, (9, 7)), ConstantComponents(7, V, 2, 6, num_topics=0))
    loaded = loaded_language_model(model.eval())
    hidden = loaded.hidden_states(torch.randint(V, (1, 20)))[0]
    assert list(loaded.layer.randomised().log_probs(hidden, torch.float64).make_blocks())


def test_a_longer_history_has_the_same_contexts():
    short, long = (choose_windows(3_000, 500, 128, history) for history in (None, 512))
    assert [w[1:] for w in short] == [w[1:] for w in long]
    assert all(w.first - w.start == min(w.first, 512) for w in long)
