"""A text as a stream of scores: static evaluation, and what becomes of a stream that breaks off."""

import numpy as np
import pytest
import torch

from highrank.evaluation.static import closed, evaluate, reader, score, summed
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel

V = 11


@pytest.fixture
def model():
    backbone = AWDLSTM(V, 6, (8,), output_dropout=0.5, weight_dropout=0.5)
    return LanguageModel(backbone, MixtureOfSoftmaxes(8, V, 3, 6, dropout=0.5)).double()


@pytest.fixture
def text():
    return np.random.default_rng(0).integers(V, size=103).astype(np.uint16)


def joined(segments):
    return [torch.cat(tensors) for tensors in zip(*segments, strict=True)]


def test_each_token_but_the_first_is_scored_from_all_before_it(model, text):
    target, log_prob, _ = joined(score(model, text, window=7))
    np.testing.assert_array_equal(target, text[1:])
    model.eval()
    words = torch.from_numpy(text.astype(np.int64))[:, None]
    for t in (0, 1, 6, 7, 101):
        hidden = model.backbone(words[: t + 1], model.initial_state(1)).hidden[-1, 0]
        want = model.head.log_prob(hidden)[words[t + 1, 0]]
        torch.testing.assert_close(log_prob[t], want)


def test_the_hidden_states_are_what_the_head_saw(model, text):
    target, log_prob, hidden = joined(score(model, text))
    assert not hidden.requires_grad
    model.eval()
    torch.testing.assert_close(model.head(hidden, target).output, log_prob)


@pytest.mark.parametrize("window", [1, 7, 102, 1000, None])
def test_the_mean_is_that_of_static_evaluation_whatever_the_window(window, model, text):
    want = evaluate(model, text, batch_size=1)
    found = summed(score(model, text, window))
    assert found.nats == pytest.approx(want.nats, rel=1e-12)
    assert found.num_tokens == want.num_tokens == 102


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
    def interrupt(share, what):
        raise KeyboardInterrupt

    model.train()
    segments = score(model, text, window=5)
    with pytest.raises(KeyboardInterrupt):
        summed(segments, 102, interrupt)
    # `segments` is still referred to: nothing but closing it can have given the mode back.
    assert model.training and next(segments, None) is None


def test_lists_need_no_closing(model, text):
    segments = list(score(model, text))
    with closed(segments):
        pass
    assert summed(segments).num_tokens == 102


def test_progress_ends_at_one(model, text):
    shares = []
    summed(score(model, text, window=50), 102, lambda share, what: shares.append(share))
    assert shares == pytest.approx([50 / 102, 100 / 102, 1.0])


def test_mistakes_are_named(model, text):
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        score(model, text, window=0)
    with pytest.raises(ValueError, match="read must be given .* LanguageModel, got Linear"):
        reader(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="at least one token, got none"):
        summed([])
