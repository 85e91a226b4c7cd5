"""Static evaluation: what is predicted, that windows do not matter, and the stream of scores."""

import math

import numpy as np
import pytest
import torch

from highrank.data.batches import Streams, windows
from highrank.evaluation.static import (
    Evaluation,
    as_the_original_divides,
    closed,
    evaluate,
    forward_of,
    score,
    summed,
)
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel

V = 11


@pytest.fixture
def model():
    backbone = AWDLSTM(V, 6, (8,), output_dropout=0.5, weight_dropout=0.5)
    return LanguageModel(backbone, MixtureOfSoftmaxes(8, V, 3, 6, dropout=0.5)).double()


@pytest.fixture
def text():
    return np.random.default_rng(0).integers(V, size=203).astype(np.uint16)


def test_every_token_but_the_first_of_each_stream_is_predicted_once(model, text):
    found = evaluate(model, text, batch_size=4)
    assert found.num_tokens == (203 // 4 - 1) * 4
    model.eval()
    total = 0.0
    for stream in Streams(text, 4)[:].T:
        state = model.initial_state(1)
        for word, target in zip(stream[:-1], stream[1:], strict=True):
            out = model(word.view(1, 1), target.view(1, 1), state)
            total, state = total + out.loss.item(), out.state
    assert found.nats == pytest.approx(total / found.num_tokens, rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_window_never_changes_the_number(batch_size, model, text):
    found = [evaluate(model, text, batch_size, window).nats for window in (1, 7, 70, 1000, None)]
    assert found == pytest.approx([found[0]] * len(found), rel=1e-12)


def test_streams_are_contiguous_and_the_rest_is_cut_off(text):
    data = Streams(text, 4)
    assert len(data) == 50 and data[:].shape == (50, 4)
    np.testing.assert_array_equal(data[:].T.flatten(), text[:200])
    assert torch.equal(data[7:9], data[:][7:9])


def test_a_text_on_disk_stays_there(text, tmp_path):
    text.tofile(tmp_path / "text.bin")
    mapped = np.memmap(tmp_path / "text.bin", dtype=np.uint16, mode="r")
    data = Streams(mapped, 4)
    assert np.shares_memory(data._pieces, mapped)
    assert torch.equal(data[3:20], Streams(text, 4)[3:20])


def test_windows_cover_all_rows_but_the_first():
    assert list(windows(10, 4)) == [(0, 4), (4, 4), (8, 1)]
    assert list(windows(2, 70)) == [(0, 1)]


def test_evaluation_is_the_same_in_training_mode_and_leaves_the_mode(model, text):
    model.train()
    first = evaluate(model, text, 2)
    assert model.training and evaluate(model, text, 2) == first


def test_too_short_a_text_is_refused(model):
    with pytest.raises(ValueError, match="two tokens for each of 10 streams, got 19 tokens"):
        evaluate(model, np.zeros(19, dtype=np.uint16), 10)


def test_perplexity_is_the_exponential_and_never_overflows():
    assert Evaluation(2.0, 5).perplexity == math.exp(2.0)
    assert math.isfinite(Evaluation(1e4, 5).perplexity)


def test_a_uniform_model_has_the_perplexity_of_the_vocabulary(model, text):
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    assert evaluate(model, text, 3).perplexity == pytest.approx(V)


def test_bits_are_nats_in_another_unit():
    assert 2 ** Evaluation(2.0, 5).bits == pytest.approx(Evaluation(2.0, 5).perplexity)


def test_the_original_divides_by_the_length_of_each_stream(model, text):
    found = evaluate(model, text, batch_size=4)
    total = found.nats * found.num_tokens
    assert as_the_original_divides(found, 4).nats == pytest.approx(total / 200)
    # PyTorch 0.4.1's 58.34 on the validation split of Penn Treebank is 0.03 too low.
    exact = Evaluation(math.log(58.37), 73_750)
    assert exact.perplexity - as_the_original_divides(exact, 10).perplexity == pytest.approx(
        0.032, abs=5e-4
    )


def test_batch_size_zero_is_refused(model, text):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        evaluate(model, text, 0)


def joined(segments):
    return [torch.cat(tensors) for tensors in zip(*segments, strict=True)]


def test_each_token_but_the_first_is_scored_from_all_before_it(model, text):
    target, log_prob, _ = joined(score(model, text, window=7))
    np.testing.assert_array_equal(target, text[1:])
    model.eval()
    words = torch.from_numpy(text.astype(np.int64))[:, None]
    for t in (0, 1, 6, 7, 201):
        hidden = model.backbone(words[: t + 1], model.initial_state(1)).hidden[-1, 0]
        want = model.head.log_prob(hidden)[words[t + 1, 0]]
        torch.testing.assert_close(log_prob[t], want)


def test_the_hidden_states_are_what_the_head_saw(model, text):
    target, log_prob, hidden = joined(score(model, text))
    assert not hidden.requires_grad
    model.eval()
    torch.testing.assert_close(model.head(hidden, target).output, log_prob)


@pytest.mark.parametrize("window", [1, 7, 202, 1000])
def test_the_mean_is_that_of_static_evaluation_whatever_the_window(window, model, text):
    want = evaluate(model, text, batch_size=1)
    found = summed(score(model, text, window))
    assert found.nats == pytest.approx(want.nats, rel=1e-12)
    assert found.num_tokens == want.num_tokens == 202


def test_the_mode_comes_back_when_the_stream_ends_or_is_closed(model, text):
    model.train()
    model.head.eval()
    summed(score(model, text))
    assert model.training and model.backbone.training and not model.head.training
    segments = score(model, text, window=5)
    next(segments)
    assert not model.training
    segments.close()
    assert model.training and not model.head.training


def test_a_sum_that_breaks_off_closes_its_stream(model, text):
    def interrupt(fraction, what):
        raise KeyboardInterrupt

    model.train()
    segments = score(model, text, window=5)
    with pytest.raises(KeyboardInterrupt):
        summed(segments, 202, interrupt)
    # `segments` is still referred to: nothing but closing it can have given the mode back.
    assert model.training and next(segments, None) is None


def test_lists_need_no_closing(model, text):
    segments = list(score(model, text))
    with closed(segments):
        pass
    assert summed(segments).num_tokens == 202


def test_progress_ends_at_one(model, text):
    seen = []
    summed(score(model, text, window=100), 202, lambda fraction, what: seen.append(fraction))
    assert seen == pytest.approx([100 / 202, 200 / 202, 1.0])


def test_mistakes_are_named_before_the_stream_is_read(model, text):
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        score(model, text, window=0)
    with pytest.raises(ValueError, match="forward must be given .* LanguageModel, got Linear"):
        forward_of(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="at least one token, got none"):
        summed([])
