"""Static evaluation: what is predicted, that windows do not matter, and the stream of scores."""

import math

import numpy as np
import pytest
import torch

from highrank.data.batches import Streams, windows
from highrank.evaluation import static
from highrank.evaluation.static import (
    Evaluation,
    as_the_original_divides,
    evaluate,
    forward_of,
    score,
    summed,
)

V = 17


@pytest.fixture
def text():
    return np.random.default_rng(0).integers(V, size=203).astype(np.uint16)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_every_token_but_the_first_of_each_stream_is_predicted_once(batch_size, model, text):
    total, length = 0.0, 203 // batch_size
    for stream in torch.from_numpy(text[: batch_size * length].astype(np.int64)).split(length):
        state = model.initial_state(1)
        for word, target in zip(stream[:-1], stream[1:], strict=True):
            out = model(word.view(1, 1), target.view(1, 1), state)
            total, state = total + out.loss.item(), out.state
    model.train()
    for window in (1, 7, 1000, None):
        found = evaluate(model, text, batch_size, window)
        assert found.num_tokens == (length - 1) * batch_size
        assert found.nats == pytest.approx(total / found.num_tokens, rel=1e-12)
    assert model.training


@pytest.mark.parametrize("end", [3, 16])
def test_sentences_alone_are_all_predicted_whatever_batch_and_window(end, model, text, monkeypatch):
    sentences = np.split(text, np.flatnonzero(text == end) + 1)
    total = 0.0
    for sentence in sentences:
        if len(sentence):
            target = torch.from_numpy(sentence.astype(np.int64))[:, None]
            read = torch.cat((torch.full((1, 1), end), target[:-1]))
            out = model(read, target, model.initial_state(1), reduction="sum")
            total += out.loss.item()
    for size, batch_size, window in ((1000, 10, None), (1000, 1, 1), (30, 4, 7), (1, 2, None)):
        monkeypatch.setattr(static, "WINDOW_TOKENS", size)
        found = evaluate(model, text, batch_size, window, sentence_end=end)
        assert found.num_tokens == len(text)
        assert found.nats == pytest.approx(total / len(text), rel=1e-12)
    parts = [
        evaluate(model, text, columns=slice(rank, None, 3), sentence_end=end) for rank in range(3)
    ]
    assert sum(part.num_tokens for part in parts) == len(text)
    assert sum(part.nats * part.num_tokens for part in parts) == pytest.approx(total, rel=1e-12)


def test_streams_are_contiguous_and_stay_on_disk(text, tmp_path):
    text.tofile(tmp_path / "text.bin")
    mapped = np.memmap(tmp_path / "text.bin", dtype=np.uint16, mode="r")
    data = Streams(mapped, 4)
    assert len(data) == 50 and np.shares_memory(data._pieces, mapped)
    np.testing.assert_array_equal(data[:].T.flatten(), text[:200])
    assert torch.equal(data[7:9], data[:][7:9])
    assert list(windows(10, 4)) == [(0, 4), (4, 4), (8, 1)]


def test_a_uniform_model_has_the_perplexity_of_the_vocabulary(model, text):
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    assert evaluate(model, text, 3).perplexity == pytest.approx(V)
    assert evaluate(model, text, 3).bits == pytest.approx(math.log2(V))
    assert math.isfinite(Evaluation(1e4, 5).perplexity)


def test_the_original_divides_by_the_length_of_each_stream(model, text):
    found = evaluate(model, text, batch_size=4)
    total = found.nats * found.num_tokens
    assert as_the_original_divides(found, 4).nats == pytest.approx(total / 200)
    # PyTorch 0.4.1's 58.34 on the validation split of Penn Treebank is 0.03 too low.
    exact = Evaluation(math.log(58.37), 73_750)
    original = as_the_original_divides(exact, 10)
    assert exact.perplexity - original.perplexity == pytest.approx(0.032, abs=5e-4)


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_scores_are_those_of_the_head_for_the_hidden_states_that_it_saw(window, model, text):
    segments = list(score(model.train(), text, window=window))
    target, log_prob, hidden = (torch.cat(tensors) for tensors in zip(*segments, strict=True))
    np.testing.assert_array_equal(target, text[1:])
    assert not hidden.requires_grad
    torch.testing.assert_close(model.eval().head(hidden, target).output, log_prob)
    words = torch.from_numpy(text.astype(np.int64))[:, None]
    want = model.backbone(words[:-1], model.initial_state(1)).hidden[:, 0]
    torch.testing.assert_close(hidden, want.detach())
    found, mean = summed(segments), evaluate(model, text, batch_size=1)
    assert found.nats == pytest.approx(mean.nats, rel=1e-12)
    assert found.num_tokens == mean.num_tokens == 202


def test_the_mode_comes_back_when_the_stream_is_closed(model, text):
    model.train()
    model.head.eval()
    segments = score(model, text, window=5)
    next(segments)
    assert not model.training
    segments.close()
    assert model.training and model.backbone.training and not model.head.training


def test_a_sum_that_breaks_off_closes_its_stream(model, text):
    def interrupt(fraction, what):
        raise KeyboardInterrupt

    model.train()
    segments = score(model, text, window=5)
    with pytest.raises(KeyboardInterrupt):
        summed(segments, 202, interrupt)
    # `segments` is still referred to: nothing but closing it can have given the mode back.
    assert model.training and next(segments, None) is None


def test_progress_ends_at_one(model, text):
    streams, one = [], []
    evaluate(model, text, 2, window=60, on_progress=lambda fraction, _: streams.append(fraction))
    summed(score(model, text, window=100), 202, lambda fraction, _: one.append(fraction))
    assert streams == [0.6, 1.0] and one == pytest.approx([100 / 202, 200 / 202, 1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: evaluate(m, t[:19], 10), "two tokens for each of 10 streams, got 19 tokens"),
        (lambda m, t: evaluate(m, t, 0), "batch_size must be at least 1, got 0"),
        (lambda m, t: score(m, t, window=0), "window must be at least 1, got 0"),
        (lambda m, t: forward_of(m.head.prior), "forward must be .* LanguageModel, got Linear"),
        (lambda m, t: summed([]), "at least one token, got none"),
    ],
)
def test_mistakes_are_named_before_the_stream_is_read(call, message, model, text):
    with pytest.raises(ValueError, match=message):
        call(model, text)
