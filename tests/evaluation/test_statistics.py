"""Gradient statistics against a loop, and the file that keeps them beside a run."""

import numpy as np
import pytest
import torch

from highrank.evaluation.statistics import batches, gradient_statistics, statistics_beside
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel

V = 11


@pytest.fixture
def model():
    backbone = AWDLSTM(V, 6, (8,), output_dropout=0.5, weight_dropout=0.5)
    return LanguageModel(backbone, MixtureOfSoftmaxes(8, V, 3, 6, dropout=0.5)).double()


@pytest.fixture
def text():
    return np.random.default_rng(0).integers(V, size=3 * 29 + 2).astype(np.uint16)


@pytest.mark.parametrize(
    "num_tokens, want",
    [(929_589, 1859), (2_088_628, 4177)],  # Penn Treebank, WikiText-2: paper.md 5.2
)
def test_the_number_of_batches_is_that_of_the_published_code(num_tokens, want):
    assert sum(1 for _ in batches(num_tokens // 100, 5)) == want


@pytest.mark.parametrize("num_rows", range(3, 20))
def test_batches_cover_every_row_unless_one_is_left_alone(num_rows):
    found = list(batches(num_rows, 5))
    assert len(found) == -(-(num_rows - 2) // 5)
    rest = (num_rows - 1) % 5
    assert sum(length for _, length in found) == num_rows - 1 - (rest == 1)


def test_rms_is_the_root_of_the_mean_square_over_batches(model, text):
    model.train()
    found = gradient_statistics(model, text, batch_size=3)
    assert model.training and all(p.grad is None for p in model.parameters())
    model.eval()
    data = torch.from_numpy(text[:87].astype(np.int64)).view(3, 29).T
    state, squares = model.initial_state(3), []
    for start in range(0, 27, 5):
        target = data[start + 1 : start + 6]
        out = model(data[start : start + len(target)], target, state)
        state = out.state
        squares.append([g**2 for g in torch.autograd.grad(out.loss, list(model.parameters()))])
    assert found.num_batches == len(squares) == 6
    want = [torch.stack(tensors).mean(0).sqrt() for tensors in zip(*squares, strict=True)]
    for (name, _), tensor in zip(model.named_parameters(), want, strict=True):
        torch.testing.assert_close(found.rms[name], tensor)
    mean = np.mean([tensor.mean().item() for tensor in want])
    assert found.mean_rms == pytest.approx(mean) and found.num_tensors == len(want)


def test_a_last_batch_that_is_short_counts_like_the_others(model, text):
    # 27 rows: batches of 5, 5, 5, 5, 5 and 1 steps, of which the last is left out; 28: and 2.
    assert gradient_statistics(model, text[:27], batch_size=1).num_batches == 5
    assert gradient_statistics(model, text[:28], batch_size=1).num_batches == 6


def test_half_precision_is_squared_in_float32(model, text):
    found = gradient_statistics(model.to(torch.bfloat16), text, batch_size=3)
    assert {rms.dtype for rms in found.rms.values()} == {torch.float32}


def test_mistakes_are_named(model, text):
    with pytest.raises(ValueError, match="three tokens for each of 100 streams, got 200 tokens"):
        gradient_statistics(model, np.zeros(200, dtype=np.int64))
    with pytest.raises(ValueError, match="segment must be at least 1, got 0"):
        gradient_statistics(model, text, segment=0)


@pytest.fixture
def beside(tmp_path, model, text):
    """Ask for statistics; whether they had to be computed, and they themselves."""

    def ask(tokens=text, batch_size=3, **options):
        seen = []
        found = statistics_beside(
            tmp_path,
            model,
            tokens,
            batch_size=batch_size,
            on_progress=lambda fraction, what: seen.append(fraction),
            **options,
        )
        assert not seen or seen[-1] == pytest.approx(1.0)
        return bool(seen), found

    return ask


def test_the_file_is_read_the_second_time_and_has_the_same_numbers(beside, tmp_path, model, text):
    is_new, first = beside()
    assert is_new and [file.suffix for file in tmp_path.iterdir()] == [".safetensors"]
    is_new, second = beside(text.astype(np.int64))
    assert not is_new and second.num_batches == first.num_batches
    assert second.segment == first.segment == 5
    assert list(second.rms) == list(first.rms) == list(dict(model.named_parameters()))
    assert all(torch.equal(second.rms[name], first.rms[name]) for name in first.rms)


def test_each_length_of_segments_has_a_file_of_its_own(beside, tmp_path):
    (_, short), (is_new, long) = beside(segment=4), beside(segment=9)
    assert is_new and (short.segment, long.segment) == (4, 9)
    assert short.num_batches > long.num_batches and short.mean_rms != long.mean_rms
    for segment, first in ((4, short), (9, long)):
        is_new, again = beside(segment=segment)
        assert not is_new and again.segment == segment and again.mean_rms == first.mean_rms
    assert len(list(tmp_path.iterdir())) == 2


def test_whatever_matters_makes_new_statistics(beside, tmp_path, model, text):
    beside()
    assert beside(text[:-3])[0]
    assert beside(batch_size=2)[0]
    assert beside(segment=4)[0]
    with torch.no_grad():
        model.head.bias[0] += 1e-12
    assert beside()[0] and len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_file_that_is_damaged_or_of_something_else_is_replaced(damage, beside, tmp_path, model):
    beside()
    (file,) = tmp_path.iterdir()
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        content = file.read_bytes()
        key = content.index(b'"key":"') + 7
        file.write_bytes(content[:key] + b"0" * 64 + content[key + 64 :])
    assert beside()[0] and not beside()[0]
