"""Blocks: every block once in each epoch, the same for all models of a seed."""

import numpy as np
import pytest
import torch

from highrank.studies.finetune.text import Blocks


def test_an_epoch_has_every_block_once_in_another_order():
    blocks = Blocks(np.arange(43, dtype=np.int32), 4)
    assert blocks.count == 10 and blocks.num_predicted == 3
    batches = [blocks.batch(step, 3, seed=1) for step in range(10)]
    rows = torch.cat(batches)  # Three epochs.
    epochs = [{int(row[0]) // 4 for row in part} for part in rows.split(10)]
    assert epochs == [set(range(10))] * 3
    assert not torch.equal(rows[:10], rows[10:20])
    assert torch.equal(batches[3], blocks.batch(3, 3, seed=1))
    assert not torch.equal(rows[:3], blocks.batch(0, 3, seed=2))


def test_a_prefix_is_read_and_not_predicted():
    blocks = Blocks(np.arange(10, 16, dtype=np.int32), 4, prefix=[7])
    assert blocks.rows.tolist() == [[7, 10, 11, 12], [7, 13, 14, 15]]
    assert blocks.labels(blocks.rows)[0].tolist() == [-100, 10, 11, 12]
    assert blocks.num_predicted == 3
    with pytest.raises(ValueError, match="block-length must be at least 3, got 2"):
        Blocks(np.arange(9, dtype=np.int32), 2, prefix=[7])
