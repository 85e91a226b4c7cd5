"""Which method fits a spectrum, decided before any work is done."""

from dataclasses import replace

import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes
from highrank.heads.linear import LinearHead
from highrank.studies.audit import rank as module
from highrank.studies.audit.layer import layer_of
from highrank.studies.audit.rank import Method, plan_spectrum

GIB = 2**30


def large(layer):
    return replace(layer, facts=replace(layer.facts, vocab_size=250_000, context_size=2_000))


def test_heads_that_would_not_fit_are_sampled_or_refused_before_work(make):
    layer = large(layer_of(make.predictor(MixtureOfSoftmaxes(6, 30, 3, 5))))
    plan = plan_spectrum(layer, 2_000, False, 2 * GIB)
    assert plan.method is Method.STABLE and "memory" in plan.reason
    assert module.peak_bytes(2_000, plan.num_tokens) <= 2 * GIB
    assert module.peak_bytes(2_000, plan.num_tokens + 2) > 2 * GIB
    assert plan_spectrum(layer, 2_000, True, 2 * GIB).num_tokens == module.QUICK_TOKENS
    assert plan_spectrum(layer, 9_000, False, 4 * GIB).method is Method.FAST
    with pytest.raises(ValueError, match="Out of memory: an audit needs at least"):
        plan_spectrum(layer, 2_000, False, 1000)


def test_a_linear_head_that_is_too_large_for_the_linear_method_is_sampled(make):
    layer = layer_of(make.predictor(LinearHead(torch.randn(30, 6))))
    assert plan_spectrum(layer, 100, False, GIB).method is Method.LINEAR
    plan = plan_spectrum(large(layer), 1_000, False, GIB)
    assert plan.method is Method.STABLE and plan.num_tokens < 250_000
