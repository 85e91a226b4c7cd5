"""Heads that are fitted to hidden states: their starts, and languages whose bound is known."""

import math

import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.heads.linear import LinearHead
from highrank.studies.audit import fit
from highrank.studies.audit.answer import Limited, answer_of
from highrank.studies.audit.fit import fit_heads
from highrank.studies.audit.samples import Sample, Samples

V, D = 20, 8
HEADS = {
    "softmax": lambda: Softmax(D, V),
    "tanh": lambda: Softmax(D, V, 3),
    "mos of one": lambda: MixtureOfSoftmaxes(D, V, 1, 3, activation="identity"),
    "linear": lambda: LinearHead(torch.randn(V, D)),
    "scale": lambda: LinearHead(torch.randn(V, D), torch.randn(V), scale=0.5),
    "softcap": lambda: LinearHead(torch.randn(V, D), torch.randn(V), scale=2.0, softcap=3.0),
    "bfloat16": lambda: LinearHead(torch.randn(V, D).bfloat16()),
}


def normal(head, scale=1.0):
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, scale)
    return head


@pytest.mark.parametrize("name", HEADS)
def test_a_fit_starts_as_the_model_predicts(name, monkeypatch):
    torch.manual_seed(0)
    head, hidden = normal(HEADS[name]()), torch.randn(9, D)
    want, state = head.log_prob(hidden), torch.get_rng_state()
    torch.testing.assert_close(fit.softmax_from(head).log_prob(hidden), want)
    monkeypatch.setattr(fit, "NOISE", 0.0)
    for start in fit.STARTS.values():
        torch.testing.assert_close(start(head).log_prob(hidden), want)
    assert torch.equal(torch.get_rng_state(), state)


def test_mixture_and_control_start_with_the_same_numbers():
    head = Softmax(D, V, 3)
    mos, moc = fit.mos_from(head), fit.moc_from(head)
    assert (mos.rank_bound, moc.rank_bound) == (None, 5)
    for one, other in zip(mos.parameters(), moc.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert mos.latent.weight[:3].ne(mos.latent.weight[3:6]).all()


def samples_of(truth, sizes=(6000, 1000, 3000)):
    """Hidden states, and tokens drawn from a head's predictions."""
    random = torch.Generator().manual_seed(1)
    hidden = [torch.randn(size, D, generator=random) for size in sizes]
    with torch.no_grad():
        targets = [torch.multinomial(truth.log_prob(h).exp(), 1, generator=random) for h in hidden]
    return Samples(*(Sample(h, t[:, 0]) for h, t in zip(hidden, targets, strict=True)))


@pytest.mark.parametrize("limited", [True, False])
def test_a_fit_finds_out_whether_the_bound_matters(limited, make):
    torch.manual_seed(0)
    head = normal(Softmax(D, V, 3, activation="identity"))
    truth = normal(MixtureOfSoftmaxes(D, V, 3, 3, activation="identity"), 1.2) if limited else head
    facts = fit_heads(head, samples_of(truth), num_steps=100, seconds=math.inf)
    model = make.softmax()
    answer = answer_of(model.head, model.text, model.rank, None, facts)
    assert (answer.verdict is Limited.YES) == limited, facts
    assert limited == (facts.gain > 0)
    assert facts.num_steps == 100 and facts.num_held_out == 3000
    best = min(facts.nats, facts.softmax_nats, facts.moc_nats)
    assert facts.gain == pytest.approx(best - facts.mos_nats)


def test_time_ends_a_fit():
    head = normal(Softmax(D, V))
    facts = fit_heads(head, samples_of(head, (50, 20, 40)), seconds=1e-9)
    assert facts.num_steps == 1 and math.isfinite(facts.gain)


def test_the_error_is_that_of_groups():
    values = torch.arange(100.0).double()
    means = values.view(20, 5).mean(1)
    assert fit.grouped_error(values) == pytest.approx(means.std().item() / math.sqrt(20))
    assert fit.grouped_error(values[:1]) == math.inf
