"""Words from every head: the likeliest, and drawn ones against their probabilities."""

import importlib

import pytest
import scipy.stats
import torch

log_prob_module = importlib.import_module("highrank.ops.mixture_log_prob")
NUM_DRAWS = 20_000
CUTS = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_k": 6},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 6, "top_p": 0.9},
]


@pytest.fixture
def small_chunks(monkeypatch):
    """Three tokens at a time."""
    monkeypatch.setattr(log_prob_module, "CHUNK_BYTES", 3 * 11 * 8)


def expected(prob, temperature=1.0, top_k=None, top_p=1.0):
    """The probabilities of one row after temperature and cuts, by sorting and counting."""
    prob = prob ** (1 / temperature)
    order = prob.argsort(descending=True)
    prob = prob / prob[order[:top_k]].sum()
    kept, mass = [], 0.0
    for word in order[:top_k].tolist():
        if mass < top_p:
            kept.append(word)
        mass += prob[word].item()
    return torch.zeros_like(prob).index_copy(0, torch.tensor(kept), prob[kept] / prob[kept].sum())


@pytest.mark.parametrize("options", CUTS, ids=str)
def test_samples_agree_with_log_prob(build, generic, hidden, options):
    head = generic(build(), scale=0.4)
    words = head.sample(hidden[:1].expand(NUM_DRAWS, 6), **options)
    count = words.bincount(minlength=11)
    want = expected(head.log_prob(hidden[0]).detach().exp(), **options)
    assert (count[want == 0] == 0).all()
    assert len(options) < 2 or 2 < (want > 0).sum() < 11
    assert scipy.stats.chisquare(count[want > 0], NUM_DRAWS * want[want > 0]).pvalue > 1e-3


def test_each_token_is_drawn_from_its_own_distribution(small_chunks, build, generic, hidden):
    head = generic(build(), scale=0.4)
    words = head.sample(hidden.repeat(1000, 1)).view(1000, 7)
    for prob, drawn in zip(head.log_prob(hidden).detach().exp(), words.T, strict=True):
        assert scipy.stats.chisquare(drawn.bincount(minlength=11), 1000 * prob).pvalue > 1e-4


@pytest.mark.parametrize("options", CUTS, ids=str)
def test_the_same_generator_draws_the_same_words(head, options):
    hidden = torch.randn(200, 6).double()
    first, second, other = (
        head.sample(hidden, **options, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)


@pytest.mark.parametrize("shape", [(7,), (8, 2), (1,), ()], ids=str)
def test_predict_is_the_likeliest_word(small_chunks, head, shape):
    hidden = torch.randn(*shape, 6).double()
    assert torch.equal(head.predict(hidden), head.log_prob(hidden).argmax(-1))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1e-6}, {"top_k": 1}])
def test_samples_without_freedom_are_the_prediction(small_chunks, head, options):
    hidden = torch.randn(50, 6).double()
    assert torch.equal(head.sample(hidden, **options), head.predict(hidden))


def test_an_impossible_word_is_never_drawn(head):
    hidden = torch.randn(1, 6).double().expand(2000, 6)
    likeliest = head.predict(hidden[:1]).item()
    head.bias.data[likeliest] = -torch.inf
    assert head.predict(hidden[:1]) != likeliest
    assert (head.sample(hidden) != likeliest).all()
    assert (head.sample(hidden, temperature=2.0) != likeliest).all()


def test_choosing_words_records_no_gradients(head, hidden):
    hidden.requires_grad_()
    assert not head.sample(hidden).requires_grad and not head.predict(hidden).requires_grad


def test_a_wrong_temperature_is_named(head, hidden):
    with pytest.raises(ValueError, match="temperature must be finite and at least 0, got -1"):
        head.sample(hidden, temperature=-1)
