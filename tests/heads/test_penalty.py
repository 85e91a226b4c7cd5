"""The penalty of a head is in the loss in training, once."""

import pytest
import torch
from contract import D, V, make_head, make_window

from highrank import linear_cross_entropy, mixture_cross_entropy
from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel


@pytest.fixture(params=["doc", "sparse-mos"])
def name(request):
    return request.param


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shift", [0, 1])
def test_the_loss_in_training_has_the_penalty(name, reduction, shift):
    head = make_head(name, balance=0.3, batch_first=True)
    hidden, target, _ = make_window(head)
    target[1, 1] = -100
    penalty = head.penalty(hidden)
    count = {"mean": 1, "sum": int((target[:, shift:] != -100).sum()), "none": 0}[reduction]
    options = {"shift": shift}
    got = head(hidden, target, reduction, **options)
    without = head(hidden, target, reduction, with_penalty=False, **options)
    plain = head.eval()(hidden, target, reduction, **options)
    torch.testing.assert_close(without.loss, plain.loss)
    torch.testing.assert_close(got.output, plain.output)
    torch.testing.assert_close(got.loss, plain.loss + count * penalty)
    assert penalty > 0


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_hidden_states_of_any_shape_have_a_loss(name, shape, reduction):
    head = make_head(name, balance=0.3)
    loss = head(torch.randn(*shape, D).double(), torch.randint(V, shape), reduction).loss
    assert loss.isfinite() or shape == (0,)


def test_a_language_model_adds_it_once(name):
    options = {} if name == "sparse-mos" else {"layers": (-1,), "layer_sizes": None}
    head = make_head(name, balance=0.3, dtype=torch.float32, **options)
    model = LanguageModel(AWDLSTM(V, 4, hidden_sizes=(D,)), head, tied=False)
    tokens, target = torch.randint(V, (2, 5, 3))
    out = model(tokens, target, model.initial_state(3))
    torch.testing.assert_close(out.loss, head(out.hidden, target, with_penalty=False).loss)
    torch.testing.assert_close(out.penalty, head.penalty(out.hidden))
    assert out.penalty > 0


def test_functions_that_return_one_number_refuse_by_products():
    context, weight, target = torch.randn(3, 2), torch.randn(5, 2), torch.tensor([1, 2, 3])
    with pytest.raises(TypeError, match="^also must be left out here, got one: mixture_loss"):
        linear_cross_entropy(context, weight, target, also=("entropy",))
    with pytest.raises(TypeError, match="^also must be left out here, got one: mixture_loss"):
        mixture_cross_entropy(context[:, None], context[:, :1], weight, target, also=("lse",))
