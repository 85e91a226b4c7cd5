"""Blocks: every block once in each epoch, in an order that the seed and the epoch decide."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.config import BatchConfig
from highrank.data.batches import IGNORED, Blocks
from highrank.training.outcome import Reason
from highrank.training.session import open_session

TOKENS = np.arange(43, dtype=np.uint16)


def read(blocks, num_batches):
    """Numbers of the blocks in each batch, over the ends of epochs."""
    found = []
    for _ in range(num_batches):
        if blocks.is_epoch_over:
            blocks.start_epoch()
        found.append((next(blocks).inputs[0] // 4).tolist())
    return found


def test_an_epoch_has_every_block_once_in_another_order():
    batches = read(Blocks(TOKENS, 3, seed=1, length=4), 10)
    numbers = sum(batches, [])
    epochs = [numbers[i : i + 10] for i in (0, 10, 20)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] == np.random.default_rng([1, 0]).permutation(10).tolist()
    assert epochs[1] == np.random.default_rng([1, 1]).permutation(10).tolist()
    assert read(Blocks(TOKENS, 3, seed=2, length=4), 10) != batches
    parts = [read(Blocks(TOKENS, 3, seed=1, length=4, columns=slice(i, i + 1)), 10) for i in (0, 2)]
    assert parts == [[[batch[i]] for batch in batches] for i in (0, 2)]


def test_an_epoch_ends_when_all_blocks_are_read():
    blocks = Blocks(TOKENS, 3, length=4)
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
    blocks, again = (Blocks(TOKENS, 3, seed=1, length=4) for _ in range(2))
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
        ({"length": 2, "prefix": (7,)}, "length must be at least 3, got 2"),
        ({"batch_size": 11}, "batch_size must be between 1 and 10 for a training split of 10 bloc"),
        ({"batch_size": 0}, "batch_size must be between 1 and 10"),
    ],
)
def test_impossible_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Blocks(TOKENS, **({"batch_size": 3, "length": 4} | options))


def test_a_run_reads_blocks_and_resumes_to_the_bit(config, corpus, tmp_path):
    config = replace(config, batch=BatchConfig(kind="blocks", batch_size=7, options={"length": 20}))
    whole = open_session(config, corpus, tmp_path / "whole")
    assert whole.go().reason is Reason.FINISHED
    cut = open_session(config, corpus, tmp_path / "cut")
    cut.go(pause_when=lambda: cut.trainer.num_steps == 14)
    cut.close()
    again = open_session(config, corpus, tmp_path / "cut")
    assert again.go().reason is Reason.FINISHED and again.best == whole.best
    for name, tensor in whole.best_state.items():
        assert torch.equal(tensor, again.best_state[name])
