"""Dynamic evaluation and its statistics against slow loops, and what must be true of any method.

Then: the conversion of published settings, the weights that come back, and foreign models.
"""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from highrank.evaluation.dynamic import (
    DynamicSettings,
    GradientStatistics,
    converted,
    evaluate_dynamically,
    gradient_statistics,
    score_dynamically,
    statistics_beside,
)
from highrank.evaluation.static import Output, score, summed

V, SEGMENT = 17, 5
SGD = DynamicSettings(rule="sgd", lr=0.5, decay=0.0)


def log_probs(segments):
    return torch.cat([segment.log_prob for segment in segments])


def slow_squares(model, train, batch_size, segment):
    """Σ g² of each parameter, and the number of batches, cut as the published code cuts them."""
    rows = len(train) // batch_size
    data = torch.from_numpy(train[: rows * batch_size].astype(np.int64)).view(batch_size, -1).T
    sums, num_batches, state = [0] * 13, 0, model.initial_state(batch_size)
    for i in range(0, rows - 2, segment):
        end = min(i + segment, rows - 1)
        out = model(data[i:end], data[i + 1 : end + 1], state)
        gradients = torch.autograd.grad(out.loss, list(model.parameters()))
        sums = [s + g**2 for s, g in zip(sums, gradients, strict=True)]
        state, num_batches = out.state, num_batches + 1
    return sums, num_batches


def slow_losses(model, text, segment, update):
    """Loss of each segment; `update` takes the gradients of each."""
    data, state, losses = torch.from_numpy(text)[:, None], model.initial_state(1), []
    for i in range(0, len(data) - 1, segment):
        target = data[i + 1 : i + 1 + segment]
        out = model(data[i : i + len(target)], target, state)
        state = out.state
        losses.append(out.loss.item())
        with torch.no_grad():
            update(torch.autograd.grad(out.loss, list(model.parameters())))
    return losses


def published_update(model, train, settings, convention):
    """The update as published, one parameter after the other."""
    sums, num_batches = slow_squares(model, train, 2, settings.segment)
    divisor = 1 if convention == "original" else num_batches
    sigmas = [(s / divisor) ** 0.5 for s in sums]
    mean = sum(sigma.mean() for sigma in sigmas) / (len(sums) if convention == "paper" else 1)
    rates = [(sigma / mean).clamp(max=1 / settings.decay) for sigma in sigmas]
    trained = [p.detach().clone() for p in model.parameters()]
    # The decay is clipped where it is large, and the test of it says something.
    is_clipped = torch.cat([(settings.decay * (s / mean) > 1).flatten() for s in sigmas])
    assert is_clipped.any() == (settings.decay > 0.5)

    def update(gradients):
        lists = zip(model.parameters(), trained, rates, sigmas, gradients, strict=True)
        for p, p0, rate, sigma, g in lists:
            p += settings.decay * rate * (p0 - p) - settings.lr * g / (sigma + settings.epsilon)

    return update


@pytest.mark.parametrize(
    ("convention", "segment", "decay"),
    [("paper", 5, 0.02), ("paper", 5, 0.7), ("paper", 12, 0.02), ("original", 5, 9), ("ms", 5, 9)],
)
def test_segments_have_the_losses_of_a_slow_loop(convention, segment, decay, model, train, text):
    statistics = gradient_statistics(model, train, batch_size=2, segment=segment)
    lr = 0.004 * (math.sqrt(statistics.num_batches) if convention == "original" else 1)
    theirs = DynamicSettings(lr=lr, epsilon=lr, decay=decay, segment=segment)
    sizes = {"num_batches": statistics.num_batches, "num_tensors": statistics.num_tensors}
    ours = converted(theirs, convention, **sizes)
    segments = score_dynamically(model, text, ours, statistics)
    found = [-segment.log_prob.mean().item() for segment in segments]
    static = [-part.mean().item() for part in log_probs(score(model, text)).split(segment)]
    update = published_update(model, train, theirs, convention)
    np.testing.assert_allclose(found, slow_losses(model, text, segment, update), atol=1e-8)
    # It learned something, or the comparison would say little.
    assert np.abs(np.subtract(found, static)).max() > 0.02


def test_sgd_pulls_toward_the_trained_weights(model, text):
    segments = score_dynamically(model, text, DynamicSettings(rule="sgd", lr=0.5, decay=0.3))
    found = [-segment.log_prob.mean().item() for segment in segments]
    trained = [p.detach().clone() for p in model.parameters()]

    def update(gradients):
        for p, p0, g in zip(model.parameters(), trained, gradients, strict=True):
            p.copy_(0.7 * p + 0.3 * p0 - 0.5 * g)

    np.testing.assert_allclose(found, slow_losses(model, text, SEGMENT, update), atol=1e-10)


def test_learning_rate_zero_is_static(model, text, statistics):
    settings = DynamicSettings(lr=0.0, decay=0.5)
    found = log_probs(score_dynamically(model, text, settings, statistics))
    torch.testing.assert_close(found, log_probs(score(model, text)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("t", [0, 4, 5, 21])
def test_probabilities_of_all_words_sum_to_one_whatever_the_target_is(t, model, statistics):
    text = np.random.default_rng(3).integers(V, size=26)
    settings = DynamicSettings(lr=0.01, epsilon=0.003)
    total = 0.0
    for word in range(V):
        text[t + 1] = word
        total += log_probs(score_dynamically(model, text, settings, statistics))[t].exp()
    assert total.item() == pytest.approx(1.0, abs=1e-10)


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
    other = dataclasses.replace(statistics, rms={**statistics.rms, "head.bias": torch.ones(3)})
    for settings, known, message in (
        (DynamicSettings(adapt=("haed",)), statistics, "adapt .* backbone, head, got 'haed'"),
        (DynamicSettings(), None, "statistics must be given for the rule rms, got None"),
        (DynamicSettings(), other, "of this model, got a difference in head.bias"),
        (DynamicSettings(segment=7), statistics, "of segments of 7 tokens, as the .*, got 5"),
    ):
        with pytest.raises(ValueError, match=message):
            score_dynamically(model, text, settings, known)


@pytest.mark.parametrize(
    ("convention", "values", "num_batches", "want"),
    [
        ("original", (0.002, 0.001, 0.075), 1859, (4.64e-5, 2.32e-5, 4.41e-3)),  # ptb-mos
        ("original", (0.002, 0.002, 0.02), 4177, (3.09e-5, 3.09e-5, 1.18e-3)),  # wt2-mos
        ("ms", (1e-4, 1e-5, 0.34), 100, (1e-4, 1e-5, 0.02)),
        ("paper", (1e-4, 1e-5, 0.34), 100, (1e-4, 1e-5, 0.34)),
    ],
)
def test_published_settings_are_converted_as_derived(convention, values, num_batches, want):
    theirs = DynamicSettings(
        **dict(zip(("lr", "epsilon", "decay"), values, strict=True)), segment=7
    )
    ours = converted(theirs, convention, num_batches=num_batches, num_tensors=17)
    assert (ours.lr, ours.epsilon, ours.decay) == pytest.approx(want, rel=5e-3)
    assert ours.segment == 7


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
    settings = DynamicSettings(lr=0.1, rule=rule, decay=0.1)
    want = evaluate_dynamically(model, text, settings, statistics)
    model.train()
    model.head.eval()
    model.head.bias.requires_grad_(False)
    before = snapshot(model)
    # Nothing random is left in training mode.
    assert evaluate_dynamically(model, text, settings, statistics) == pytest.approx(want)
    assert is_as_before(model, before)
    assert model.training and model.backbone.training and not model.head.training
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["head.bias"]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("where", ["forward pass", "progress", "caller"])
def test_an_interrupted_model_is_as_before_to_the_bit(error, where, model, text):
    model.train()
    before, count = snapshot(model), 0

    def fail(*_):
        nonlocal count
        count += 1
        if count == 7:
            assert not is_as_before(model, before) and not model.training
            raise error

    with pytest.raises(error) as caught, contextlib.ExitStack() as stack:
        if where == "caller":
            for _ in stack.enter_context(contextlib.closing(score_dynamically(model, text, SGD))):
                fail()
        if where == "forward pass":
            stack.callback(model.head.register_forward_hook(fail).remove)
        evaluate_dynamically(model, text, SGD, on_progress=fail)
    # The traceback is alive, and with it every frame: the weights came back without their end.
    assert caught.tb and count == 7 and is_as_before(model, before) and model.training


@pytest.mark.parametrize(
    "adapt, want",
    [
        (("head.prior", "head.bias"), {"head.prior.weight", "head.bias"}),
        # The output embedding is tied, and its first name is the backbone's.
        (("head.weight",), {"backbone.embedding.weight"}),
        (("backbone.layers.1.bias_hh_l0",), {"backbone.layers.1.bias_hh_l0"}),
        (None, None),
    ],
)
@pytest.mark.parametrize("rule", ["rms", "sgd"])
def test_only_the_selected_parameters_learn(rule, adapt, want, model, text, statistics):
    settings = DynamicSettings(lr=0.01, adapt=adapt, rule=rule)
    before = dict(zip(dict(model.named_parameters()), snapshot(model), strict=True))
    for _ in score_dynamically(model, text, settings, statistics):
        now = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert now == (want or set(before))


class Plain(nn.Module):
    """Not a model of this package."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(V, 6), nn.GRU(6, 8, num_layers=2, dropout=0.5)
        self.linear, self.unused = nn.Linear(8, V), nn.Parameter(torch.ones(2))

    def forward(self, words, target, state):
        state = None if state is None else state["state"][0]
        hidden, state = self.gru(self.embedding(words), state)
        log_prob = self.linear(hidden).log_softmax(-1).gather(-1, target[..., None])[..., 0]
        return Output(-log_prob.mean(), log_prob, {"state": [state]}, hidden)


def test_sgd_on_a_model_of_somebody_else_is_torch_sgd(text):
    model = Plain().double()
    found = log_probs(score_dynamically(model, text, SGD, forward=model))
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
        statistics = gradient_statistics(model, train, batch_size=2, forward=model)
        settings = DynamicSettings(lr=1e-3, decay=0.0)
        found = evaluate_dynamically(model, text, settings, statistics, forward=model).nats
        for _ in score_dynamically(model, text, settings, statistics, forward=model):
            assert not torch.is_grad_enabled()
        static = summed(score(model, text, forward=model)).nats
    assert found != static and math.isfinite(found)
    assert (statistics.rms["unused"] == 0).all()
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    # The last batch may be short; one of a single step is left out.
    ("num_tokens", "num_batches"),
    [(3 * 29 + 2, 6), (3 * 27, 5), (3 * 28, 6)],
)
def test_rms_is_the_root_of_the_mean_square_over_batches(num_tokens, num_batches, model):
    text = np.random.default_rng(0).integers(V, size=num_tokens).astype(np.uint16)
    squares, want = slow_squares(model, text, 3, SEGMENT)
    found = gradient_statistics(model.train(), text, batch_size=3)
    assert model.training and all(p.grad is None for p in model.parameters())
    assert found.num_batches == want == num_batches and found.num_tensors == len(squares)
    sigmas = [(total / want).sqrt() for total in squares]
    for rms, sigma in zip(found.rms.values(), sigmas, strict=True):
        torch.testing.assert_close(rms, sigma)
    assert found.mean_rms == pytest.approx(np.mean([sigma.mean().item() for sigma in sigmas]))


def test_statistics_of_half_precision_are_float32_and_mistakes_are_named(model, train):
    with pytest.raises(ValueError, match="three tokens for each of 100 streams, got 200 tokens"):
        gradient_statistics(model, np.zeros(200, dtype=np.int64))
    with pytest.raises(ValueError, match="segment must be at least 1, got 0"):
        gradient_statistics(model, train, segment=0)
    found = gradient_statistics(model.to(torch.bfloat16), train, batch_size=3)
    assert {rms.dtype for rms in found.rms.values()} == {torch.float32}


@pytest.fixture
def beside(tmp_path, model, train):
    """Ask for statistics; whether they had to be computed, and they themselves."""

    def ask(tokens=train, batch_size=3, **options):
        seen = []
        options["on_progress"] = lambda fraction, what: seen.append(fraction)
        found = statistics_beside(tmp_path, model, tokens, batch_size=batch_size, **options)
        assert not seen or seen[-1] == pytest.approx(1.0)
        return bool(seen), found

    return ask


def test_the_file_is_read_the_second_time_and_has_the_same_numbers(beside, tmp_path, model, train):
    is_new, first = beside()
    assert is_new and [file.suffix for file in tmp_path.iterdir()] == [".safetensors"]
    is_new, second = beside(train.astype(np.uint16))
    assert not is_new and isinstance(second, GradientStatistics)
    assert (second.num_batches, second.segment) == (first.num_batches, 5)
    assert list(second.rms) == list(first.rms) == list(dict(model.named_parameters()))
    assert all(torch.equal(second.rms[name], first.rms[name]) for name in first.rms)


def test_whatever_matters_makes_new_statistics(beside, tmp_path, model, train):
    assert beside()[0] and beside(train[:-3])[0] and beside(batch_size=2)[0]
    (is_new, short), (_, again) = beside(segment=4), beside(segment=4)
    assert is_new and (short.segment, again.segment) == (4, 4)
    with torch.no_grad():
        model.head.bias[0] += 1e-12
    assert beside()[0] and len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_file_that_is_damaged_or_of_something_else_is_replaced(is_cut, beside, tmp_path):
    beside()
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    key = content.index(b'"key":"') + 7
    other = content[:key] + b"0" * 64 + content[key + 64 :]
    file.write_bytes(content[:100] if is_cut else other)
    assert beside()[0] and not beside()[0]
