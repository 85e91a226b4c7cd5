"""A temperature: a distribution, static at 1, and the best there is by scipy's own search."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from highrank.evaluation.search import Method, evaluate_by, find_temperature
from highrank.evaluation.static import evaluate, summed
from highrank.evaluation.temperature import TemperatureSettings, fit_temperature, score_at
from highrank.heads.components.ngram import NGramComponent
from highrank.heads.components.pointer import Pointer
from highrank.heads.composed import Composed
from highrank.models import LanguageModel

V = 17


@pytest.fixture(params=["mixture", "composed"])
def any_model(request, model, train):
    """With a mixture of softmaxes; with a pointer and an n-gram beside it."""
    if request.param == "mixture":
        return model
    parts = [Pointer(8, V), NGramComponent(8, V)]
    parts[1].fit(train, ())
    head = Composed(model.head, parts, objective="own")
    nn.init.normal_(head.gate.weight, std=0.5)
    return LanguageModel(model.backbone, head).double().eval()


def nats(model, text, temperature):
    settings = TemperatureSettings(temperature=temperature)
    return summed(score_at(model, text, settings)).nats


def test_at_temperature_one_it_is_static(any_model, text):
    want = evaluate(any_model, text, 1)
    assert nats(any_model, text, 1.0) == pytest.approx(want.nats, rel=1e-9)
    method = Method(temperature=TemperatureSettings(temperature=1.0))
    assert method.name == "temperature" and not method.is_static
    assert evaluate_by(method, any_model, text) == pytest.approx(want, rel=1e-9)


def test_probabilities_sum_to_one_whatever_the_head_is(any_model, text):
    """The same text with every token at its end: what comes there sums to one."""
    settings, text = TemperatureSettings(temperature=0.6), text[:30]
    last = []
    for token in range(V):
        *_, segment = score_at(any_model, np.append(text, token), settings)
        last.append(segment.log_prob[-1])
    assert torch.stack(last).logsumexp(0).item() == pytest.approx(0.0, abs=1e-12)


def test_the_fit_is_the_best_temperature_that_scipy_finds(any_model, text):
    trials = fit_temperature(any_model, text)
    settings, loss = trials[-1]
    want = minimize_scalar(lambda beta: nats(any_model, text, 1 / beta), bounds=(1e-3, 5))
    assert 1 / settings.temperature == pytest.approx(want.x, rel=2e-3, abs=1e-4)
    assert loss == pytest.approx(want.fun, abs=1e-6) and len(trials) <= 15
    assert loss == pytest.approx(nats(any_model, text, settings.temperature), rel=1e-9)


def test_the_search_names_what_was_tried_with_static_among_it(model, text):
    method = find_temperature(model, text)
    search = method.searches["temperature"]
    assert search.trials[0].settings.temperature == 1.0
    assert search.trials[0].nats == pytest.approx(evaluate(model, text, 1).nats, rel=1e-9)
    assert search.best.settings == method.temperature and search.num_tokens == len(text) - 1


def test_a_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 0"):
        TemperatureSettings(temperature=0)
