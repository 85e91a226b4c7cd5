"""Dynamic evaluation against slow loops written here, and what must be true of any such method.

Then: the conversion of published settings, the weights that come back, and foreign models.
"""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from highrank.evaluation.dynamic import (
    CONVENTIONS,
    DynamicSettings,
    converted,
    evaluate_dynamically,
    score_dynamically,
)
from highrank.evaluation.static import Output, score, summed
from highrank.evaluation.statistics import GradientStatistics, gradient_statistics

V, SEGMENT = 17, 5
SGD = DynamicSettings(rule="sgd", lr=0.5, decay=0.0)


def log_probs(segments):
    return torch.cat([segment.log_prob for segment in segments])


def steps_of(tokens, batch_size, segment):
    """(words, target), each (T, B), of batches as the published code cuts them."""
    rows = len(tokens) // batch_size
    data = torch.from_numpy(tokens[: rows * batch_size].astype(np.int64)).view(batch_size, -1).T
    for i in range(0, rows - 2, segment):
        end = min(i + segment, rows - 1)
        yield data[i:end], data[i + 1 : end + 1]


def squares_of(model, train, batch_size, segment):
    """Σ g² of each parameter, and the number of batches."""
    sums, num_batches, state = [0] * 13, 0, model.initial_state(batch_size)
    for words, target in steps_of(train, batch_size, segment):
        model.zero_grad()
        out = model(words, target, state)
        out.loss.backward()
        state = out.state
        sums = [s + p.grad**2 for s, p in zip(sums, model.parameters(), strict=True)]
        num_batches += 1
    return sums, num_batches


def slow_losses(model, train, text, lr, epsilon, decay, convention, segment=SEGMENT):
    """Loss of each segment, with the update as published, one parameter after the other."""
    sums, num_batches = squares_of(model, train, 2, segment)
    divisor = 1 if convention == "original" else num_batches
    sigmas = [(s / divisor) ** 0.5 for s in sums]
    mean = sum(sigma.mean() for sigma in sigmas) / (len(sums) if convention == "paper" else 1)
    rates = [(sigma / mean).clamp(max=1 / decay) for sigma in sigmas]
    trained = [p.detach().clone() for p in model.parameters()]
    data, state, losses = torch.from_numpy(text)[:, None], model.initial_state(1), []
    for i in range(0, len(data) - 1, segment):
        target = data[i + 1 : i + 1 + segment]
        model.zero_grad()
        out = model(data[i : i + len(target)], target, state)
        out.loss.backward()
        state = out.state
        losses.append(out.loss.item())
        with torch.no_grad():
            lists = zip(model.parameters(), trained, rates, sigmas, strict=True)
            for p, p0, rate, sigma in lists:
                p += decay * rate * (p0 - p) - lr * p.grad / (sigma + epsilon)
    return losses


@pytest.mark.parametrize("convention", ["paper", "original", "ms"])
@pytest.mark.parametrize("decay", [0.02, 0.7])
def test_segments_have_the_losses_of_a_slow_loop(convention, decay, model, train, text, statistics):
    settings = DynamicSettings(lr=0.004, epsilon=0.003, decay=decay)
    sizes = {"num_batches": statistics.num_batches, "num_tensors": statistics.num_tensors}
    theirs = converted(settings, "paper", convention, **sizes)
    found = [
        -segment.log_prob.mean().item()
        for segment in score_dynamically(
            model, text, converted(theirs, convention, **sizes), statistics
        )
    ]
    static = [-part.mean().item() for part in log_probs(score(model, text)).split(SEGMENT)]
    want = slow_losses(model, train, text, theirs.lr, theirs.epsilon, theirs.decay, convention)
    assert len(want) == 50 and len(text) % SEGMENT != 1
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-8)
    # It learned something, or the comparison would say little.
    assert np.abs(np.subtract(want, static)).max() > 0.03


def test_statistics_and_evaluation_share_the_length_of_segments(model, train, text):
    settings = DynamicSettings(lr=0.004, epsilon=0.003, decay=0.02, segment=12)
    statistics = gradient_statistics(model, train, batch_size=2, segment=12)
    segments = score_dynamically(model, text, settings, statistics)
    found = [-segment.log_prob.mean().item() for segment in segments]
    want = slow_losses(model, train, text, 0.004, 0.003, 0.02, "paper", segment=12)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-8)


def test_the_decay_is_clipped_in_the_test_of_slow_loops(statistics):
    shares = torch.cat([rms.flatten() for rms in statistics.rms.values()]) / statistics.mean_rms
    assert (0.7 * shares > 1).any() and (0.02 * shares < 1).all()


def test_learning_rate_zero_is_static(model, text, statistics):
    settings = DynamicSettings(lr=0.0, decay=0.5)
    found = log_probs(score_dynamically(model, text, settings, statistics))
    torch.testing.assert_close(found, log_probs(score(model, text)), rtol=0, atol=1e-12)
    model, float_statistics = model.float(), statistics
    found = evaluate_dynamically(model, text, settings, float_statistics).nats
    assert found == pytest.approx(summed(score(model, text)).nats, abs=1e-6)


@pytest.mark.parametrize("t", [0, 3, 4, 5, 21])
def test_probabilities_of_all_words_sum_to_one_whatever_the_target_is(t, model, statistics):
    text = np.random.default_rng(3).integers(V, size=26)
    settings = DynamicSettings(lr=0.01, epsilon=0.003)
    total = 0.0
    for word in range(V):
        text[t + 1] = word
        total += log_probs(score_dynamically(model, text, settings, statistics))[t].exp()
    assert total.item() == pytest.approx(1.0, abs=1e-10)


def test_what_can_only_be_known_from_the_target_is_not_known(model):
    # Random words, and steps that learn a segment by heart: who looked first would be sure.
    text = np.random.default_rng(4).integers(V, size=101)
    settings = DynamicSettings(rule="sgd", lr=2.0, decay=0.0, segment=1)
    peeking, honest = 0.0, 0.0
    with contextlib.closing(score_dynamically(model, text, settings)) as segments:
        for segment in segments:
            honest -= segment.log_prob.sum().item() / 100
    data, state = torch.from_numpy(text)[:, None], model.initial_state(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for words, target in zip(data[:-1, None], data[1:, None], strict=True):
        optimizer.zero_grad()
        model(words, target, state).loss.backward()
        optimizer.step()
        out = model(words, target, state)
        state, peeking = out.state, peeking + out.loss.item() / 100
    assert peeking < 0.5 * math.log(V) and honest > math.log(V)


def test_the_decay_of_sgd_pulls_toward_the_trained_weights(model, text):
    settings = DynamicSettings(rule="sgd", lr=0.5, decay=0.3)
    found = log_probs(score_dynamically(model, text, settings))
    trained = [p.detach().clone() for p in model.parameters()]
    state, want = model.initial_state(1), []
    data = torch.from_numpy(text)[:, None]
    for i in range(0, len(data) - 1, SEGMENT):
        target = data[i + 1 : i + 1 + SEGMENT]
        out = model(data[i : i + len(target)], target, state)
        state = out.state
        want.append(out.output[:, 0])
        gradients = torch.autograd.grad(out.loss, list(model.parameters()))
        with torch.no_grad():
            for p, p0, g in zip(model.parameters(), trained, gradients, strict=True):
                p.copy_(0.7 * p + 0.3 * p0 - 0.5 * g)
    torch.testing.assert_close(found, torch.cat(want), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"lr": -1.0}, "lr must be at least 0 and finite, got -1.0"),
        ({"decay": math.nan}, "decay must be at least 0 and finite, got nan"),
        ({"epsilon": 0.0}, "epsilon must be positive and finite, got 0.0"),
        ({"rule": "adam"}, "rule must be one of rms, sgd, got 'adam'"),
        ({"rule": "sgd", "decay": 2.0}, "decay must be at most 1 for the rule sgd, got 2.0"),
        ({"segment": 0}, "segment must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        DynamicSettings(**values)


def test_mistakes_are_named_before_the_stream_is_read(model, text, statistics):
    with pytest.raises(ValueError, match="adapt must name .* backbone, head, got 'haed'"):
        score_dynamically(model, text, DynamicSettings(adapt=("haed",)), statistics)
    with pytest.raises(ValueError, match="statistics must be given for the rule rms, got None"):
        score_dynamically(model, text, DynamicSettings())
    rms = {**statistics.rms, "head.bias": torch.ones(3)}
    other = GradientStatistics(rms=rms, num_batches=2, segment=SEGMENT)
    with pytest.raises(ValueError, match="of this model, got a difference in head.bias"):
        score_dynamically(model, text, DynamicSettings(), other)
    with pytest.raises(ValueError, match="of segments of 7 tokens, as the settings, got 5"):
        score_dynamically(model, text, DynamicSettings(segment=7), statistics)


@pytest.mark.parametrize(
    "lr, epsilon, decay, num_batches, want",
    [
        (0.002, 0.001, 0.075, 1859, (4.64e-5, 2.32e-5, 4.41e-3)),  # ptb-mos
        (0.002, 0.002, 0.02, 4177, (3.09e-5, 3.09e-5, 1.18e-3)),  # wt2-mos
    ],
)
def test_the_settings_of_the_mixtures_are_as_derived(lr, epsilon, decay, num_batches, want):
    theirs = DynamicSettings(lr=lr, epsilon=epsilon, decay=decay)
    ours = converted(theirs, "original", num_batches=num_batches, num_tensors=17)
    assert (ours.lr, ours.epsilon, ours.decay) == pytest.approx(want, rel=5e-3)


def test_the_third_convention_differs_in_the_decay_only():
    theirs = DynamicSettings(lr=1e-4, epsilon=1e-5, decay=0.34, segment=7, adapt=("head",))
    ours = converted(theirs, "ms", num_batches=100, num_tensors=17)
    assert ours.decay == pytest.approx(0.02)
    assert dataclasses.replace(ours, decay=theirs.decay) == theirs


@given(
    st.sampled_from(list(CONVENTIONS)),
    st.sampled_from(list(CONVENTIONS)),
    st.sampled_from(list(CONVENTIONS)),
    st.integers(1, 10_000),
    st.integers(1, 500),
)
def test_a_detour_ends_at_the_same_place(first, second, third, num_batches, num_tensors):
    sizes = {"num_batches": num_batches, "num_tensors": num_tensors}
    start = DynamicSettings(lr=3e-4, epsilon=2e-5, decay=0.01)
    direct = converted(start, first, third, **sizes)
    detour = converted(converted(start, first, second, **sizes), second, third, **sizes)
    assert dataclasses.astuple(detour)[:3] == pytest.approx(dataclasses.astuple(direct)[:3])


def test_a_conversion_that_cannot_be_is_refused():
    sizes = {"num_batches": 10, "num_tensors": 3}
    with pytest.raises(ValueError, match="one of paper, original, ms, got 'old'"):
        converted(DynamicSettings(), "old", **sizes)
    with pytest.raises(ValueError, match="of the rule rms to be converted, got sgd"):
        converted(DynamicSettings(rule="sgd"), "original", **sizes)


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
@pytest.mark.parametrize(
    "where", ["in the forward pass", "while showing progress", "in the caller"]
)
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
        if where == "in the forward pass":
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


class Plain(nn.Module):
    """Not a model of this package."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(V, 6), nn.GRU(6, 8, num_layers=2, dropout=0.5)
        self.linear, self.unused = nn.Linear(8, V), nn.Parameter(torch.ones(2))

    def forward(self, words, target, state):
        hidden, state = self.gru(self.embedding(words), state)
        log_prob = self.linear(hidden).log_softmax(-1).gather(-1, target[..., None])[..., 0]
        return Output(-log_prob.mean(), log_prob, {"state": [state]}, hidden)

    def step(self, tokens, target, state):
        return self(tokens, target, None if state is None else state["state"][0])


def test_sgd_on_a_model_of_somebody_else_is_torch_sgd(text):
    model = Plain().double()
    found = log_probs(score_dynamically(model, text, SGD, forward=model.step))
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD.lr)
    data, state, want = torch.from_numpy(text)[:, None], None, []
    for i in range(0, len(data) - 1, SEGMENT):
        target = data[i + 1 : i + 1 + SEGMENT]
        hidden, state = model.gru(model.embedding(data[i : i + len(target)]), state)
        state = state.detach()
        losses = F.cross_entropy(model.linear(hidden)[:, 0], target[:, 0], reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        want.append(-losses.detach())
    torch.testing.assert_close(found, torch.cat(want), rtol=0, atol=1e-10)


def test_rms_works_on_a_frozen_model_of_somebody_else_without_gradients_around(train, text):
    model = Plain().requires_grad_(False)
    with torch.no_grad():
        statistics = gradient_statistics(model, train, batch_size=2, forward=model.step)
        settings = DynamicSettings(lr=1e-3, decay=0.0)
        found = evaluate_dynamically(model, text, settings, statistics, forward=model.step).nats
        segments = score_dynamically(model, text, settings, statistics, forward=model.step)
        for _ in segments:
            assert not torch.is_grad_enabled()
        static = summed(score(model, text, forward=model.step)).nats
    assert found != static and math.isfinite(found)
    assert (statistics.rms["unused"] == 0).all()
    assert not any(p.requires_grad for p in model.parameters())
