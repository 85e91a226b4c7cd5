"""Batches of text: windows against the original code's rule; blocks, each once in an epoch."""

import numpy as np
import pytest
import torch

from highrank.data.batches import IGNORED, Batch, Blocks, TextStreams

TOKENS = np.arange(1000)
FEW = np.arange(43, dtype=np.uint16)


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


def read(blocks, num_batches):
    """Numbers of the blocks in each batch, over the ends of epochs."""
    found = []
    for _ in range(num_batches):
        if blocks.is_epoch_over:
            blocks.start_epoch()
        found.append((next(blocks).inputs[0] // 4).tolist())
    return found


def test_an_epoch_has_every_block_once_in_another_order():
    batches = read(Blocks(FEW, 3, seed=1, length=4), 10)
    numbers = sum(batches, [])
    epochs = [numbers[i : i + 10] for i in (0, 10, 20)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] == np.random.default_rng([1, 0]).permutation(10).tolist()
    assert epochs[1] == np.random.default_rng([1, 1]).permutation(10).tolist()
    assert read(Blocks(FEW, 3, seed=2, length=4), 10) != batches
    parts = [read(Blocks(FEW, 3, seed=1, length=4, columns=slice(i, i + 1)), 10) for i in (0, 2)]
    assert parts == [[[batch[i]] for batch in batches] for i in (0, 2)]


def test_an_epoch_ends_when_all_blocks_are_read():
    blocks = Blocks(FEW, 3, length=4)
    assert [next(blocks).num_targets for _ in range(3)] == [9, 9, 9]
    assert blocks.progress == pytest.approx(0.9) and not blocks.is_epoch_over
    next(blocks)
    assert blocks.progress == 1 and blocks.is_epoch_over
    with pytest.raises(StopIteration):
        next(blocks)
    blocks.start_epoch()
    assert blocks.progress == pytest.approx(0.2)
    # In the middle of an epoch, the next one is begun at its first block.
    blocks.start_epoch()
    assert (blocks.position, blocks.progress) == (20, 0)


def test_blocks_continue_from_their_state():
    blocks, again = (Blocks(FEW, 3, seed=1, length=4) for _ in range(2))
    read(blocks, 5)
    again.load_state_dict(blocks.state_dict())
    assert read(again, 5) == read(blocks, 5)
    with pytest.raises(ValueError, match="position must be in epoch 1, got 9"):
        again.load_state_dict({"epoch": 1, "position": 9})


def test_the_next_token_of_the_block_is_predicted_but_no_prefix():
    batch = Blocks(np.arange(10, 16), 1, length=3).batch([1, 0])
    assert batch.inputs.T.tolist() == [[13, 14, 15], [10, 11, 12]]
    assert batch.target.T.tolist() == [[14, 15, IGNORED], [11, 12, IGNORED]]
    assert batch.num_targets == 4 and not batch.carries
    blocks = Blocks(np.arange(10, 16), 1, length=5, prefix=(7, 8))
    batch = blocks.batch([0])
    assert batch.inputs[:, 0].tolist() == [7, 8, 10, 11, 12] and blocks.num_predicted == 3
    assert batch.target[:, 0].tolist() == [IGNORED, 10, 11, 12, IGNORED]
    assert batch.num_targets == int((batch.target != IGNORED).sum()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bptt": 0}, "bptt must be at least 1, got 0"),
        ({"bptt_std": float("inf")}, "bptt_std must be at least 0 and finite, got inf"),
        ({"bptt_max_delta": -1}, "bptt_max_delta must be at least 0, got -1"),
        ({"bptt_half_probability": 1.5}, "bptt_half_probability must be between 0 and 1, got 1.5"),
        ({"batch_size": 334}, "batch_size must be between 1 and 333 for a training split of 1,000"),
        ({"batch_size": 0}, "batch_size must be between 1 and 333 for a training split of 1,000"),
        ({"length": 2, "prefix": (7,)}, "length must be at least 3, got 2"),
        ({"length": 10, "batch_size": 101}, "between 1 and 100 for a training split of 100 bloc"),
    ],
)
def test_impossible_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        (Blocks if "length" in options else TextStreams)(TOKENS, **({"batch_size": 4} | options))


@pytest.mark.parametrize("columns", [slice(None), slice(1, 3)])
@pytest.mark.parametrize("prefix", [None, (), (7, 7)])
def test_batches_know_where_their_tokens_stand(prefix, columns):
    tokens = np.random.default_rng(0).permutation(100)
    batches = TextStreams(tokens, 4, bptt=6, columns=columns)
    if prefix is not None:
        batches = Blocks(tokens, 4, length=8, prefix=prefix, columns=columns)
    for batch in batches.__next__(), batches.__next__().parts(1)[0]:
        is_text = batch.position >= 0
        assert is_text.sum(0).eq(len(batch.inputs) - len(prefix or ())).all()
        found = torch.from_numpy(tokens)[batch.position[is_text]]
        assert torch.equal(found, batch.inputs[is_text])
