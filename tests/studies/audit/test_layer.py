"""Output layers: which method fits their spectrum, and which hidden states are possible."""

from dataclasses import replace

import pytest
import torch

from highrank.analysis.unargmaxable import Verdict, decide_tokens
from highrank.analysis.unargmaxable.problem import Box, Everywhere
from highrank.heads import Mixture, MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.integrations.huggingface.output_layer import OutputLayer
from highrank.studies.audit import layer as module
from highrank.studies.audit.layer import head_layer, hugging_face_layer, plan_spectrum
from highrank.studies.audit.measure import audit_unargmaxable

V, D, GIB = 30, 6, 2**30


def of_head(head, hidden_bound=1.0):
    return head_layer(head, is_tied=False, hidden_bound=hidden_bound)


def of_output():
    return hugging_face_layer(
        OutputLayer(weight=torch.randn(V, D), bias=None, scale=1.0, softcap=None, is_tied=False)
    )


def test_heads_that_would_not_fit_are_sampled_or_refused_before_work():
    layer = of_head(MixtureOfSoftmaxes(D, V, 3, 5))
    big = replace(layer, facts=replace(layer.facts, vocab_size=250_000, context_size=2_000))
    plan = plan_spectrum(big, 2_000, False, 2 * GIB)
    assert plan.method == "stable" and "memory" in plan.reason
    assert module.peak_bytes(2_000, plan.num_tokens) <= 2 * GIB
    assert module.peak_bytes(2_000, plan.num_tokens + 2) > 2 * GIB
    assert plan_spectrum(big, 2_000, True, 2 * GIB).num_tokens == module.QUICK_TOKENS
    assert plan_spectrum(big, 9_000, False, 4 * GIB).method == "fast"
    with pytest.raises(ValueError, match="Out of memory: an audit needs at least"):
        plan_spectrum(big, 2_000, False, 1000)


def test_a_linear_head_that_is_too_large_for_the_linear_method_is_sampled():
    layer = of_output()
    facts = replace(layer.facts, vocab_size=250_000, context_size=2_000)
    assert plan_spectrum(layer, 100, False, GIB).method == "linear"
    plan = plan_spectrum(replace(layer, facts=facts), 1_000, False, GIB)
    assert plan.method == "stable" and plan.num_tokens < 250_000


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
    ],
)
def test_the_states_of_a_head_are_bounded_by_what_precedes_it(head, hidden_bound, states):
    assert of_head(head, hidden_bound).vectors.states == states


def test_a_token_may_be_argmaxable_only_in_states_that_are_not_possible():
    head = Softmax(D, V)
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
        head.weight[3] *= 10
        head.bias[3] = -1e3
    vectors = of_head(head).vectors
    found, _ = audit_unargmaxable(vectors, str, False, GIB, lambda fraction, text: None)
    assert "between -1 and 1" in found.states
    assert 3 in [token.index for token in found.unargmaxable]
    assert decide_tokens(head.weight, head.bias)[3].verdict is Verdict.ARGMAXABLE


class Scaled(Softmax):
    """Contexts that leave the box of tanh."""

    def mixture(self, hidden):
        log_weight, context = super().mixture(hidden)
        return Mixture(log_weight, 20 * context)


def test_a_head_with_other_contexts_proves_nothing_by_their_old_bound():
    assert of_head(Scaled(D, V, 5)).vectors.states == Everywhere()


class Stated(Softmax):
    @property
    def rank_bound(self):
        return 99


def test_a_bound_that_a_head_states_is_taken():
    bound = of_head(Stated(D, V)).bound
    assert bound.value == 99 and bound.reason == "Stated states it"


class Doubled(Softmax):
    """Another distribution of the same contexts."""

    def log_prob_from(self, features):
        return (2 * super().log_prob_from(features)).log_softmax(-1)


def test_of_a_head_with_its_own_probabilities_only_these_are_known():
    layer = of_head(Doubled(D, V))
    assert layer.linear_spectra is None and layer.vectors is None
