"""Sentences alone: every token once, in batches of similar size, from any position on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.config import BatchConfig
from highrank.data import sentences
from highrank.data.batches import IGNORED
from highrank.data.sentences import Sentences, sentence_batches
from highrank.training.world import World

END = 1


def made_text(seed=0, count=400, longest=30):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, longest, count)
    return np.concatenate(
        [np.append(generator.integers(2, 50, length), END) for length in lengths]
    ).astype(np.uint16)


@pytest.fixture(autouse=True)
def small_sections(monkeypatch):
    monkeypatch.setattr(sentences, "SECTION_TOKENS", 700)
    monkeypatch.setattr(sentences, "SCANNED_TOKENS", 8)


def sentences_of(batch):
    """The tokens of each sentence of a batch, after what its columns begin with was checked."""
    for tokens, target in zip(batch.inputs.T, batch.target.T, strict=True):
        words = target[target != IGNORED]
        if len(words):
            assert tokens[: len(words)].tolist() == [END, *words[:-1].tolist()]
            yield tuple(words.tolist())


def epoch(batches):
    while not batches.is_epoch_over:
        yield next(batches)


def lines_of(tokens):
    ends = np.flatnonzero(tokens == END) + 1
    return sorted(tuple(line.tolist()) for line in np.split(tokens, ends) if len(line))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80), st.integers(1, 6), st.booleans())
def test_every_sentence_is_read_once_in_an_epoch_whole_and_alone(lengths, batch_size, is_open):
    text = np.concatenate([np.append(np.arange(2, 2 + size), END) for size in lengths])
    text = text[:-1] if is_open and len(text) > 8 else text
    batches = Sentences(text, min(batch_size, len(text)), sentence_end=END, length=7)
    for _ in range(2):
        found = [line for batch in epoch(batches) for line in sentences_of(batch)]
        assert sorted(found) == lines_of(text)
        batches.start_epoch()


def test_the_order_is_another_in_each_epoch_and_for_each_seed():
    text = made_text()
    batches = Sentences(text, 8, sentence_end=END)
    orders = [[batch.target.tolist() for batch in epoch(batches)]]
    batches.start_epoch()
    orders.append([batch.target.tolist() for batch in epoch(batches)])
    other = Sentences(text, 8, sentence_end=END, seed=1)
    orders.append([batch.target.tolist() for batch in epoch(other)])
    assert orders[0] != orders[1] and orders[0] != orders[2]
    # Long and short sentences come in no order.
    lengths = [len(target) for target in orders[0]]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)


def test_batches_are_of_similar_size_with_little_padding(monkeypatch):
    monkeypatch.undo()
    batches = list(epoch(Sentences(made_text(count=20_000), 32, sentence_end=END, length=16)))
    padded = np.array([batch.target.numel() for batch in batches])
    filled = np.array([batch.num_targets for batch in batches])
    assert padded.max() <= 32 * 16 and np.quantile(filled, 0.05) > 0.9 * 32 * 16
    assert filled.sum() / padded.sum() > 0.95


def test_a_position_is_one_number_that_continues_with_the_same_batches():
    text = made_text()
    batches = Sentences(text, 6, sentence_end=END)
    for _ in range(20):
        next(batches)
    state = batches.state_dict()
    assert state["position"] > 100 and set(state) == {"epoch", "position"}
    other = Sentences(text, 6, sentence_end=END)
    other.load_state_dict(state)
    for batch, same in zip(epoch(batches), epoch(other), strict=True):
        torch.testing.assert_close(batch, same)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_processes_share_each_batch_and_their_position(size):
    text, config = made_text(), BatchConfig(kind="sentences", batch_size=6)
    whole = Sentences(text, 6, sentence_end=END)
    parts = [
        Sentences(text, 6, sentence_end=END, columns=World(rank, size).columns(config))
        for rank in range(size)
    ]
    for batch in epoch(whole):
        found = [next(part) for part in parts]
        # Collectives need as many numbers from each process.
        num_rows, num_columns = batch.target.shape
        assert {part.target.shape for part in found} == {(num_rows, -(-num_columns // size))}
        lines = [line for part in found for line in sentences_of(part)]
        assert sorted(lines) == sorted(sentences_of(batch))
        assert sum(part.num_targets for part in found) == batch.num_targets
        assert all(part.num_targets == (part.target != IGNORED).sum() for part in found)
        assert {part.position for part in parts} == {whole.position}


def test_positions_are_those_of_what_is_read_in_the_training_split():
    text = made_text()
    for batch in epoch(Sentences(text, 6, sentence_end=END)):
        known = batch.position >= 0
        read = torch.from_numpy(text.astype(np.int64))[batch.position[known]]
        assert torch.equal(read, batch.inputs[known])
        # All but those after padding, and the first of the text.
        assert known.sum() >= batch.num_targets - 1


def test_a_file_is_read_section_by_section(tmp_path):
    text = made_text()
    text.tofile(tmp_path / "text.bin")
    mapped = np.memmap(tmp_path / "text.bin", dtype=np.uint16, mode="r")
    for batch, same in zip(
        sentence_batches(text, END, 100), sentence_batches(mapped, END, 100), strict=True
    ):
        torch.testing.assert_close(batch, same)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentence_end": None}, "vocabulary without <eos>"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be between 1 and"),
    ],
)
def test_impossible_values_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Sentences(made_text(), **{"batch_size": 2, "sentence_end": END} | options)
    batches = Sentences(made_text(), 2, sentence_end=END)
    with pytest.raises(ValueError, match="position must be in epoch 1, got 3"):
        batches.load_state_dict({"epoch": 1, "position": 3})
