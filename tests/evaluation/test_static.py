"""Static evaluation: what is predicted, and that windows do not matter."""

import math

import numpy as np
import pytest
import torch

from highrank.data.batches import Streams, windows
from highrank.evaluation.static import Evaluation, as_the_original_divides, evaluate
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


def test_every_token_but_the_first_of_each_column_is_predicted_once(model, text):
    found = evaluate(model, text, batch_size=4)
    assert found.num_tokens == (203 // 4 - 1) * 4
    model.eval()
    total = 0.0
    for column in Streams(text, 4)[:].T:
        state = model.initial_state(1)
        for word, target in zip(column[:-1], column[1:], strict=True):
            out = model(word.view(1, 1), target.view(1, 1), state)
            total, state = total + out.loss.item(), out.state
    assert found.nats == pytest.approx(total / found.num_tokens, rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_window_never_changes_the_number(batch_size, model, text):
    found = [evaluate(model, text, batch_size, window).nats for window in (1, 7, 70, 1000, None)]
    assert found == pytest.approx([found[0]] * len(found), rel=1e-12)


def test_columns_are_contiguous_and_the_rest_is_cut_off(text):
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


def test_the_original_divides_by_the_length_of_each_column(model, text):
    found = evaluate(model, text, batch_size=4)
    total = found.nats * found.num_tokens
    assert as_the_original_divides(found, 4).nats == pytest.approx(total / 200)
    # PyTorch 0.4.1's 58.34 on the validation text of Penn Treebank is 0.03 too low.
    exact = Evaluation(math.log(58.37), 73_750)
    assert exact.perplexity - as_the_original_divides(exact, 10).perplexity == pytest.approx(
        0.032, abs=5e-4
    )


def test_no_columns_are_refused(model, text):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        evaluate(model, text, 0)
