"""Heads that look back: one order of time and batch, and words for the other one."""

import re

import pytest
import torch
from contract import NAMES, B, D, T, V, make_head, make_window
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_map

from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel

STATEFUL = [name for name in NAMES if make_head(name).is_stateful]
looks_back = pytest.mark.parametrize("name", STATEFUL)


@looks_back
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("method", ["log_prob", "predict", "sample", "advance"])
def test_the_other_order_is_refused_where_tokens_or_state_show_it(name, batch_first, method):
    head = make_head(name, batch_first=batch_first)
    hidden, tokens = torch.randn(T, B, D).double(), torch.randint(V, (T, B))
    if not batch_first:
        hidden, tokens = hidden.transpose(0, 1), tokens.T
    order = ("T, B", "B, T")[batch_first]
    message = rf"^hidden must be \({order}, D\) with batch_first={batch_first} and "
    with pytest.raises(ValueError, match=message + rf"have the {B} sequences of the state, got"):
        getattr(head, method)(hidden, tokens=tokens, state=head.initial_state(B))
    with pytest.raises(ValueError, match=message + rf"tokens \({order}\), got"):
        getattr(head, method)(hidden, tokens=tokens.T, state=head.initial_state(hidden.shape[1]))
    with pytest.raises(ValueError, match=rf"^hidden must be \({order}, D\) .*, got \(5, 6\)$"):
        getattr(head, method)(hidden[0].new_zeros(5, D), tokens=tokens, state=None)


@looks_back
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_other_order_is_refused_where_targets_show_it(name, batch_first):
    head = make_head(name, batch_first=batch_first)
    text = torch.randint(V, (T + 1, 4))
    tokens, target, hidden = text[:-1], text[1:].clone(), torch.randn(T, 4, D).double()
    target[2, 1] = -100
    right = (hidden, target, tokens)
    wrong = (hidden.transpose(0, 1), target.T, tokens.T)
    for given, is_right in ((right, not batch_first), (wrong, batch_first)):
        if is_right:
            head(*given[:2], tokens=given[2])
            continue
        with pytest.raises(ValueError, match=f"those of batch_first={not batch_first}$"):
            head(*given[:2], tokens=given[2])
    # Nothing speaks against either order.
    head(hidden, torch.full_like(target, 3), tokens=torch.full_like(tokens, 3))


class Scored(nn.Module):
    """Log-probabilities and loss of a window, as a module that can be exported."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden, target, tokens, state):
        past = {"tokens": tokens, "state": state}
        return self.head(hidden, **past), self.head(hidden, target, **past).loss


@pytest.mark.parametrize("name", [name for name in STATEFUL if "ngram" not in name])
def test_they_are_exported_for_any_length_and_batch(name):
    model, length, batch = Scored(make_head(name)), Dim("length", min=2), Dim("batch", min=2)

    def window(*shape):
        hidden, target, past = make_window(model.head, *shape)
        return hidden.detach(), target, past["tokens"], past["state"]

    both = {0: length, 1: batch}
    state = tree_map(lambda _: {1: batch}, model.head.initial_state(B))
    shapes = {"hidden": both, "target": both, "tokens": both, "state": state}
    exported = export(model, window(), dynamic_shapes=shapes).module()
    for shape in ((2, 4), (17, 3)):
        given = window(*shape)
        torch.testing.assert_close(exported(*given), model(*given))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in STATEFUL])
def test_heads_that_do_not_look_back_refuse_tokens_and_states(name):
    head = make_head(name)
    hidden, target, _ = make_window(head)
    kind = re.escape(type(head).__name__)
    for method in ("forward", "log_prob", "predict", "sample"):
        for argument in ("tokens", "state"):
            with pytest.raises(ValueError, match=f"^{argument} must be left out for {kind}, which"):
                getattr(head, method)(hidden, **{argument: target})
    with pytest.raises(TypeError, match="must be of tokens, state, position, got token$"):
        head.log_prob(hidden, token=target)
    assert torch.equal(head.log_prob(hidden, tokens=None, state=None), head.log_prob(hidden))


def test_a_language_model_takes_no_head_whose_batch_comes_first():
    backbone = AWDLSTM(V, D, hidden_sizes=(D,))
    with pytest.raises(ValueError, match="^the head must have batch_first=False, got True"):
        LanguageModel(backbone, make_head("mos", batch_first=True), tied=False)
