"""Output layers: form, bound and possible states, random weights, what fits into memory."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from highrank.analysis.divergence import expected_divergence
from highrank.analysis.unargmaxable import Verdict, decide_tokens
from highrank.analysis.unargmaxable.problem import Box, Everywhere
from highrank.heads import (
    Composed,
    Constant,
    Head,
    Mixture,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    Pointer,
    Softmax,
)
from highrank.heads.linear import LinearHead
from highrank.models import AWDLSTM, LanguageModel
from highrank.predictor import LanguageModelPredictor
from highrank.studies.audit import rank as module
from highrank.studies.audit.layer import layer_of
from highrank.studies.audit.rank import Method, plan_spectrum, random_baseline
from highrank.studies.audit.tokens import audit_unargmaxable

V, D, T, GIB = 30, 6, 40, 2**30

HEADS = {
    "softmax": lambda: Softmax(D, V),
    "moc": lambda: MixtureOfContexts(D, V, 3, 5),
    "mos": lambda: MixtureOfSoftmaxes(D, V, 3, 5),
    "linear": lambda: LinearHead(torch.randn(V, D), torch.randn(V), scale=0.5),
    "softcap": lambda: LinearHead(torch.randn(V, D), softcap=3.0),
    "bfloat16": lambda: LinearHead(torch.randn(V, D).bfloat16()),
    # A parameter without numbers.
    "constant": lambda: Composed(MixtureOfSoftmaxes(D, V, 2, 5), [Constant(D, V, num_topics=0)]),
}


@pytest.fixture
def layer(make):
    """Makes the layer of a head with random weights."""
    return lambda head, bound=1.0: layer_of(make.predictor(head, hidden_bound=bound))


def rows(layer, hidden, precision=torch.float64):
    return torch.cat(list(layer.log_probs(hidden, precision).blocks()))


@pytest.mark.parametrize(
    "head, hidden_bound, states",
    [
        (Softmax(D, V), 1.0, Box(1.0)),
        (Softmax(D, V), 2.5, Box(2.5)),
        (Softmax(D, V), None, Everywhere()),
        # Behind a latent layer its activation decides.
        (Softmax(D, V, 5), None, Box(1.0)),
        (MixtureOfContexts(D, V, 3, 5), None, Box(1.0)),
        (Softmax(D, V, 5, activation="identity"), 1.0, Everywhere()),
        (LinearHead(torch.randn(V, D)), None, Everywhere()),
    ],
)
def test_the_states_of_a_head_are_bounded_by_what_precedes_it(layer, head, hidden_bound, states):
    assert layer(head, hidden_bound).vectors.states == states


def test_a_token_may_be_argmaxable_only_in_states_that_are_not_possible(layer):
    found = layer(Softmax(D, V))
    with torch.no_grad():
        found.head.weight[3] *= 10
        found.head.bias[3] = -1e3
    facts, _ = audit_unargmaxable(found.vectors, str, False, GIB, lambda fraction, text: None)
    assert "between -1 and 1" in facts.states
    assert 3 in [token.index for token in facts.unargmaxable]
    assert decide_tokens(found.head.weight, found.head.bias)[3].verdict is Verdict.ARGMAXABLE


class Scaled(Softmax):
    """Contexts that leave the box of tanh."""

    def mixture(self, hidden):
        log_weight, context = super().mixture(hidden)
        return Mixture(log_weight, 20 * context)


class Stated(Softmax):
    @property
    def rank_bound(self):
        return 99


class Doubled(Softmax):
    """Another distribution of the same contexts."""

    def log_prob_from(self, features):
        return (2 * super().log_prob_from(features)).log_softmax(-1)


class Sigsoftmax(Head):
    """No mixture: softmax(z + log σ(z))."""

    def __init__(self):
        super().__init__(D, V)
        self.weight = nn.Parameter(torch.randn(V, D))

    def log_prob_from(self, features):
        z = features @ self.weight.T
        return (z + nn.functional.logsigmoid(z)).log_softmax(-1)


def test_what_a_head_changes_is_not_claimed(layer):
    assert layer(Scaled(D, V, 5)).vectors.states == Everywhere()
    bound = layer(Stated(D, V)).bound
    assert bound.value == 99 and bound.reason == "Stated states it"
    doubled = layer(Doubled(D, V))
    assert not doubled.is_linear and doubled.vectors is None


def test_a_head_that_is_no_mixture_is_audited_by_its_log_probabilities(layer):
    found, hidden = layer(Sigsoftmax()), torch.randn(20, D)
    assert (found.facts.kind, found.bound.value, found.mixture) == ("Sigsoftmax", None, None)
    want = copy.deepcopy(found.head).double().log_prob(hidden.double())
    torch.testing.assert_close(rows(found, hidden), want)


@pytest.mark.parametrize("name", HEADS)
def test_random_weights_have_the_form_and_the_moments_of_the_layer_and_leave_it(layer, name):
    own = layer(HEADS[name]())
    hidden = torch.randn(T, D)
    before, random = rows(own, hidden), own.randomised()
    assert baseline_of(own, hidden) == baseline_of(own, hidden)
    assert torch.equal(rows(own, hidden), before)
    assert random.facts == own.facts and random.bound == own.bound
    if own.vectors is not None:
        weight, other = own.vectors.weight.float(), random.vectors.weight.float()
        assert not torch.equal(weight, other)
        assert other.mean().item() == pytest.approx(weight.mean().item(), abs=0.3)
        assert other.std().item() == pytest.approx(weight.std().item(), rel=0.3)


def baseline_of(layer, hidden):
    plan = plan_spectrum(layer, len(hidden), False, GIB)
    return random_baseline(layer, hidden, plan, lambda fraction, text: None)


def test_random_weights_reach_the_bound_of_a_softmax_on_all_contexts(layer):
    baseline = baseline_of(layer(HEADS["linear"]()), torch.randn(T, D))
    assert baseline.num_contexts == T and baseline.specialisation is None
    assert baseline.measures["numerical_rank_float64"] == D + 2
    assert baseline.divergence > 0


def test_a_mixture_has_a_baseline_of_a_quarter_of_the_contexts_and_of_its_components(layer):
    found, hidden = layer(HEADS["mos"]()), torch.randn(T, D)
    baseline = baseline_of(found, hidden)
    assert baseline.num_contexts == T // 4 and baseline.specialisation > 0
    own = expected_divergence(found.log_probs(hidden[: T // 4], torch.float32)).nats
    assert baseline.divergence != pytest.approx(own, rel=1e-3)
    assert baseline_of(layer(HEADS["mos"]()), torch.randn(7, D)).num_contexts == 7


def test_of_a_head_that_looks_back_random_weights_meet_the_features():
    pointer = Pointer(7, V, num_states=8, key_size=5)
    head = Composed(MixtureOfSoftmaxes(7, V, 2, 6), [pointer])
    predictor = LanguageModelPredictor(LanguageModel(AWDLSTM(V, 6, (9, 7)), head).eval())
    reader = predictor.without_state()
    own = layer_of(predictor, reader.head)
    assert (own.facts.kind, own.facts.context_size) == ("mos+pointer", 6)
    assert own.facts.has_bias and own.facts.is_tied
    assert own.bound.value is None and own.vectors is None and own.mixture is None
    hidden = reader.hidden_states(torch.randint(V, (1, 20)))[0]
    one, two, three = (rows(x, hidden) for x in (own, own.randomised(), own.randomised()))
    assert torch.equal(two, three) and not torch.allclose(one, two)
    torch.testing.assert_close(two.exp().sum(-1), torch.ones(20).double())


def large(layer):
    return replace(layer, facts=replace(layer.facts, vocab_size=250_000, context_size=2_000))


def test_heads_that_would_not_fit_are_sampled_or_refused_before_work(layer):
    found = large(layer(HEADS["mos"]()))
    plan = plan_spectrum(found, 2_000, False, 2 * GIB)
    assert plan.method is Method.STABLE and "memory" in plan.reason
    assert module.peak_bytes(2_000, plan.num_tokens) <= 2 * GIB
    assert module.peak_bytes(2_000, plan.num_tokens + 2) > 2 * GIB
    assert plan_spectrum(found, 2_000, True, 2 * GIB).num_tokens == module.QUICK_TOKENS
    assert plan_spectrum(found, 9_000, False, 4 * GIB).method is Method.FAST
    with pytest.raises(ValueError, match="Out of memory: an audit needs at least"):
        plan_spectrum(found, 2_000, False, 1000)


def test_a_linear_head_that_is_too_large_for_the_linear_method_is_sampled(layer):
    found = layer(HEADS["bfloat16"]())
    assert plan_spectrum(found, 100, False, GIB).method is Method.LINEAR
    plan = plan_spectrum(large(found), 1_000, False, GIB)
    assert plan.method is Method.STABLE and plan.num_tokens < 250_000
