"""Batches of pairs: everything once, little padding, the same after an interruption."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.data.batches import IGNORED
from highrank.data.pairs.encoded import EncodedPairs, PairBatches, Ragged, batches_in_order

PAD = 0
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)


def pairs_of(lengths):
    """Pairs whose tokens tell which pair they are of."""
    sides = [[[i + 1] * row[side] for i, row in enumerate(lengths)] for side in (0, 1)]
    return EncodedPairs(*map(Ragged.of, sides))


def rows_of(batch):
    """The pairs of a batch: source tokens, target tokens, and which."""
    mask, tokens = batch.inputs["attention_mask"], batch.inputs["input_ids"]
    assert ((tokens == PAD) == (mask == 0)).all()
    for column in range(batch.target.shape[1]):
        target = batch.target[:, column]
        kept = target[target != IGNORED]
        assert set(kept.tolist()) == {tokens[0, column].item()}
        yield int(mask[:, column].sum()), len(kept), kept[0].item() - 1


@settings(max_examples=30, deadline=None)
@given(LENGTHS, st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_has_every_pair_once_and_no_batch_is_too_large(lengths, most, seed):
    batches = PairBatches(pairs_of(lengths), most, pad=PAD, seed=seed)
    for _ in range(2):
        found = []
        for batch in _epoch(batches):
            rows = list(rows_of(batch))
            longest = max(max(source, target) for source, target, _ in rows)
            assert len(rows) * longest <= most or len(rows) == 1
            assert batch.num_targets == sum(target for _, target, _ in rows)
            found += [(source, target, which) for source, target, which in rows]
        assert sorted(found, key=lambda row: row[2]) == [
            (*row, which) for which, row in enumerate(lengths)
        ]
        batches.start_epoch()


def _epoch(batches):
    while not batches.is_epoch_over:
        yield next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_little_of_a_batch_is_padding():
    random = np.random.default_rng(0)
    target = random.integers(5, 30, 3_000)
    source = np.maximum(1, target + random.integers(-4, 5, 3_000))
    batches = PairBatches(pairs_of(np.stack([source, target], 1).tolist()), 1_000, pad=PAD)
    masks, targets = zip(
        *((batch.inputs["attention_mask"], batch.target) for batch in _epoch(batches)), strict=True
    )
    padding = 1 - sum(mask.sum() for mask in masks) / sum(mask.numel() for mask in masks)
    assert padding < 0.12
    assert sum((target == IGNORED).sum() for target in targets) < 0.02 * target.sum()


def test_resumed_batches_are_those_of_an_uninterrupted_epoch():
    pairs = pairs_of([(3, 4), (2, 2), (5, 1), (3, 3), (1, 6)])
    one, other = (PairBatches(pairs, 8, pad=PAD, seed=3) for _ in range(2))
    next(one)
    other.load_state_dict(one.state_dict())
    for _ in range(2):
        while not one.is_epoch_over:
            assert torch.equal(next(one).target, next(other).target)
        one.start_epoch()
        other.start_epoch()
    assert one.epoch == 2
    with pytest.raises(ValueError, match="position must be between 0 and"):
        other.load_state_dict({"epoch": 0, "position": 99})


def test_an_evaluation_reads_every_pair_once():
    pairs = pairs_of([(3, 4), (2, 2), (5, 1), (3, 3), (1, 6)])
    assert sorted(row for rows in batches_in_order(pairs, 8) for row in rows) == list(range(5))
