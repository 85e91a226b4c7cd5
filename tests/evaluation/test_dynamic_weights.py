"""Dynamic evaluation borrows a model's weights: which of them learn, and that all come back."""

import contextlib

import pytest
import torch

from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically, score_dynamically

SGD = DynamicSettings(rule="sgd", lr=0.5, decay=0.0)


def log_probs(segments):
    return torch.cat([segment.log_prob for segment in segments])


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()]


def is_as_before(model, before):
    return all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("rule", ["rms", "sgd"])
def test_the_model_is_as_before_to_the_bit(rule, model, text, statistics):
    model.train()
    model.head.eval()
    model.head.bias.requires_grad_(False)
    before = snapshot(model)
    evaluate_dynamically(model, text, DynamicSettings(lr=0.1, rule=rule, decay=0.1), statistics)
    assert is_as_before(model, before)
    assert model.training and model.backbone.training and not model.head.training
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["head.bias"]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("where", ["while reading", "while showing progress", "in the caller"])
def test_an_interrupted_model_is_as_before_to_the_bit(error, where, model, text):
    model.train()
    before, count = snapshot(model), 0

    def fail(*_):
        nonlocal count
        count += 1
        if count == 7:
            assert not is_as_before(model, before) and not model.training
            raise error

    with pytest.raises(error) as caught:
        if where == "while reading":
            with contextlib.ExitStack() as stack:
                stack.callback(model.head.register_forward_hook(fail).remove)
                evaluate_dynamically(model, text, SGD)
        elif where == "while showing progress":
            evaluate_dynamically(model, text, SGD, on_progress=fail)
        else:
            with contextlib.closing(score_dynamically(model, text, SGD)) as segments:
                for _ in segments:
                    fail()
    # The traceback is alive, and with it every frame: the weights came back without their end.
    assert caught.tb and count == 7 and is_as_before(model, before) and model.training


def test_nothing_random_is_left_in_training_mode(model_with_dropout, text):
    model = model_with_dropout
    want = log_probs(score_dynamically(model, text, SGD))
    model.train()
    torch.testing.assert_close(log_probs(score_dynamically(model, text, SGD)), want)


def changed(model, text, settings, statistics=None):
    """The names of the parameters that differ before the last segment is learned from."""
    before = dict(zip(dict(model.named_parameters()), snapshot(model), strict=True))
    for _ in score_dynamically(model, text, settings, statistics):
        now = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    return now


@pytest.mark.parametrize(
    "adapt, want",
    [
        (("head.prior", "head.bias"), {"head.prior.weight", "head.bias"}),
        # The output embedding is tied, and its first name is the backbone's.
        (("head.weight",), {"backbone.embedding.weight"}),
        (("backbone.layers.1.bias_hh_l0",), {"backbone.layers.1.bias_hh_l0"}),
    ],
)
def test_only_the_chosen_parameters_learn(adapt, want, model, text, statistics):
    for settings in (
        DynamicSettings(lr=0.01, adapt=adapt),
        DynamicSettings(lr=0.01, adapt=adapt, rule="sgd"),
    ):
        assert changed(model, text, settings, statistics) == want


def test_all_parameters_learn_unless_told_otherwise(model, text, statistics):
    settings = DynamicSettings(lr=0.01)
    assert changed(model, text, settings, statistics) == set(dict(model.named_parameters()))
