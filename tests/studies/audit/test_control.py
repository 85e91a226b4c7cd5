"""The control: the same head with random weights, which says what needs no training."""

import pytest
import torch

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.integrations.huggingface.output_layer import OutputLayer
from highrank.studies.audit.control import random_control
from highrank.studies.audit.layer import head_layer, hugging_face_layer, plan_spectrum

V, D, T = 30, 6, 40


def of_head(head):
    return head_layer(head.eval(), is_tied=False, hidden_bound=1.0)


def of_output(**changes):
    fields = {"weight": torch.randn(V, D), "bias": torch.randn(V), "scale": 0.5, "softcap": None}
    return hugging_face_layer(OutputLayer(**{**fields, "is_tied": False, **changes}))


LAYERS = {
    "softmax": lambda: of_head(Softmax(D, V)),
    "moc": lambda: of_head(MixtureOfContexts(D, V, 3, 5)),
    "mos": lambda: of_head(MixtureOfSoftmaxes(D, V, 3, 5)),
    "hugging face": of_output,
    "softcap": lambda: of_output(softcap=3.0),
    "bfloat16": lambda: of_output(weight=torch.randn(V, D).bfloat16()),
}


def control_of(layer, hidden):
    plan = plan_spectrum(layer, len(hidden), False, 2**30)
    return random_control(layer, hidden, plan, lambda fraction, text: None)


@pytest.mark.parametrize("name", LAYERS)
def test_random_weights_have_the_form_and_the_moments_of_the_layer(name):
    layer = LAYERS[name]()
    twin = layer.randomised()
    assert twin.facts == layer.facts and twin.bound == layer.bound
    if layer.vectors is not None:
        own, other = layer.vectors.weight.float(), twin.vectors.weight.float()
        assert not torch.equal(own, other)
        assert other.mean().item() == pytest.approx(own.mean().item(), abs=0.3)
        assert other.std().item() == pytest.approx(own.std().item(), rel=0.3)


@pytest.mark.parametrize("name", LAYERS)
def test_a_control_is_repeatable_and_leaves_the_layer_as_it_is(name):
    layer, hidden = LAYERS[name](), torch.randn(T, D)
    before = torch.cat(list(layer.log_probs(hidden, torch.float32).blocks()))
    first, second = control_of(layer, hidden), control_of(layer, hidden)
    assert first == second
    assert torch.equal(torch.cat(list(layer.log_probs(hidden, torch.float32).blocks())), before)


def test_random_weights_reach_the_bound_of_a_softmax_on_all_contexts():
    control = control_of(of_output(), torch.randn(T, D))
    assert control.num_contexts == T and control.specialisation is None
    assert control.measures["numerical_rank_float64"] == D + 2
    assert control.divergence > 0


def test_a_mixture_has_a_control_of_a_quarter_of_the_contexts_and_of_its_components():
    control = control_of(LAYERS["mos"](), torch.randn(T, D))
    assert control.num_contexts == T // 4 and control.specialisation > 0
    assert control_of(LAYERS["mos"](), torch.randn(7, D)).num_contexts == 7
