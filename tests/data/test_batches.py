"""Batches of text: lengths of windows against the original code's rule, position, parts."""

import numpy as np
import pytest
import torch

from highrank.data.batches import IGNORED, Batch, TextStreams

TOKENS = np.arange(1000)


def lengths(bptt, n=4000, std=5.0, max_delta=40):
    batches = TextStreams(TOKENS, 1, seed=1, bptt=bptt, bptt_std=std, bptt_max_delta=max_delta)
    return torch.tensor([batches.draw_bptt() for _ in range(n)])


def test_windows_are_around_the_mean_or_half_of_it():
    found = lengths(70)
    assert found.min() >= 5 and found.max() <= 110
    short = (found < 50).float().mean().item()
    assert 0.035 < short < 0.065
    # int() cuts off, half a token on average.
    assert abs(found[found >= 50].float().mean().item() - 69.5) < 0.4
    assert abs(found[found >= 50].float().std().item() - 5.0) < 0.3


def test_windows_are_never_shorter_than_five_nor_longer_than_allowed():
    found = lengths(12, std=30.0, max_delta=4)
    assert found.min() == 5 and found.max() == 16


def test_without_deviation_all_windows_are_equal():
    assert set(lengths(35, 50, std=0.0).tolist()) == {35}


def test_an_epoch_reads_the_text_in_order_and_stops_two_rows_before_its_end():
    batches = TextStreams(TOKENS, 4, bptt=12)
    found = []
    while not batches.is_epoch_over:
        batch = next(batches)
        assert torch.equal(batch.target, batch.inputs + 1)
        assert batch.carries == bool(found) and batch.num_targets == batch.target.numel()
        found.append(batch.inputs)
    rows = torch.cat(found)  # (T, B)
    assert torch.equal(rows[:, 2], torch.arange(500, 500 + len(rows)))
    assert len(rows) in (248, 249) and batches.progress == 1
    with pytest.raises(StopIteration):
        next(batches)
    batches.start_epoch()
    assert batches.progress == 0 and not next(batches).carries


def test_batches_continue_from_their_state():
    batches, again = TextStreams(TOKENS, 4, bptt=12), TextStreams(TOKENS, 4, seed=5, bptt=12)
    for _ in range(5):
        next(batches)
    again.load_state_dict(batches.state_dict())
    for _ in range(5):
        one, other = next(batches), next(again)
        assert torch.equal(one.inputs, other.inputs) and one.lr_ratio == other.lr_ratio
    with pytest.raises(ValueError, match="row must be below 250, got 250"):
        again.load_state_dict(again.state_dict() | {"row": 250})


def test_processes_read_the_columns_of_one_batch():
    whole = next(TextStreams(TOKENS, 4, bptt=12))
    parts = [next(TextStreams(TOKENS, 4, bptt=12, columns=slice(i, i + 2))) for i in (0, 2)]
    assert torch.equal(torch.cat([part.inputs for part in parts], 1), whole.inputs)


def test_parts_of_a_padded_batch_count_their_own_targets():
    target = torch.tensor([[1, 2, 3], [4, IGNORED, 5], [IGNORED, IGNORED, 6]])  # (T, B)
    inputs = {"source": torch.arange(6).view(2, 3), "target": torch.arange(9).view(3, 3)}
    parts = Batch(inputs, target, num_targets=6).parts(2)
    assert [part.num_targets for part in parts] == [3, 3]
    assert torch.equal(parts[1].inputs["source"], torch.tensor([[2], [5]]))
    assert len(Batch(inputs, target, num_targets=6).parts(None)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bptt": 0}, "bptt must be at least 1, got 0"),
        ({"bptt_std": -1.0}, "bptt_std must be at least 0 and finite, got -1"),
        ({"bptt_std": float("inf")}, "bptt_std must be at least 0 and finite, got inf"),
        ({"bptt_max_delta": -1}, "bptt_max_delta must be at least 0, got -1"),
        ({"bptt_half_probability": 1.5}, "bptt_half_probability must be between 0 and 1, got 1.5"),
        ({"batch_size": 334}, "batch_size must be between 1 and 333 for a training split of 1,000"),
        ({"batch_size": 0}, "batch_size must be between 1 and 333 for a training split of 1,000"),
    ],
)
def test_impossible_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TextStreams(TOKENS, **({"batch_size": 4} | options))
