"""Dynamic evaluation against slow loops written here, and what must be true of any such method."""

import contextlib
import math

import numpy as np
import pytest
import torch

from highrank.evaluation.dynamic import (
    DynamicSettings,
    converted,
    evaluate_dynamically,
    score_dynamically,
)
from highrank.evaluation.static import score, summed
from highrank.evaluation.statistics import GradientStatistics, gradient_statistics

V, SEGMENT = 17, 5


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
