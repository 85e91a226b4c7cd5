"""From text to ids: splits, vocabularies, and memory that does not grow."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from highrank.data import TextOptions, encode, prepare_text, text


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bpe:300", "unigram:300"])
def test_the_splits_are_the_text_again(tokenizer, path, cache):
    options = TextOptions(tokenizer=tokenizer, min_count=1)
    corpus = prepare_text(path, options=options, cache=cache).corpus
    tokenize = text.tokenizer_of(corpus.header.recipe)
    lines = path.read_text().removesuffix("\n").split("\n")
    want = [token for line in lines for token in tokenize(line)]
    found = np.concatenate([corpus.split(name) for name in ("train", "valid", "test")])
    ids = corpus.vocabulary.encode(want)
    assert found.tolist() == ids.tolist()
    train = found[: len(corpus.split("train"))]
    assert corpus.vocabulary.unk is None or corpus.vocabulary.unk not in train
    if tokenizer != "words":
        assert corpus.vocabulary.decode(found).count("<eos>") == len(lines)


def test_the_size_of_each_split_s_text_is_kept(tmp_path, cache):
    (tmp_path / "in").mkdir()
    content = {"train": "aé €\n" * 9, "valid": "\ufeffA b\r\n\r\n", "test": "a"}
    for name, text_ in content.items():
        (tmp_path / "in" / f"{name}.txt").write_bytes(text_.encode())
    options = TextOptions(lower=True)
    splits = prepare_text(tmp_path / "in", options=options, cache=cache).corpus.header.splits
    sizes = [(split.num_bytes, split.num_chars) for split in splits.values()]
    assert sizes == [(72, 45), (5, 5), (1, 1)]


def test_the_vocabulary_is_that_of_the_training_split_by_frequency(path, cache):
    corpus = prepare_text(path, cache=cache).corpus
    train = Counter(corpus.vocabulary.decode(corpus.split("train")))
    unk, eos, *words = corpus.vocabulary.tokens
    assert (unk, eos) == ("<unk>", "<eos>")
    assert words == sorted(words, key=lambda word: (-train[word], word))
    assert min(train[word] for word in words) >= 3
    assert corpus.header.splits["train"].num_unknown == train["<unk>"] > 300


def test_options_cut_and_lower_the_vocabulary(path, cache):
    options = TextOptions(max_vocab=12, lower=True)
    corpus = prepare_text(path, options=options, cache=cache).corpus
    assert len(corpus.vocabulary) == corpus.header.vocab_size == 12
    assert "line" in corpus.vocabulary and "Line" not in corpus.vocabulary
    assert corpus.header.recipe.lower and corpus.header.recipe.max_vocab == 12


def test_tokens_only_seen_later_are_unknown(tmp_path, cache):
    (tmp_path / "in").mkdir()
    for name, words in (("train", "a b " * 9), ("valid", "a b new"), ("test", "new newer")):
        (tmp_path / "in" / f"{name}.txt").write_text(words)
    corpus = prepare_text(tmp_path / "in", cache=cache).corpus
    assert corpus.vocabulary.tokens == ("<unk>", "<eos>", "a", "b")
    fractions = [split.unknown_fraction for split in corpus.header.splits.values()]
    assert fractions == [0, 1 / 4, 2 / 3]
    names = [source.name for source in corpus.header.sources]
    assert names == ["train.txt", "valid.txt", "test.txt"]


def test_a_large_vocabulary_takes_four_bytes(tmp_path, cache):
    file = tmp_path / "large.txt"
    file.write_text("".join(f"w{number}\n" for number in range(80_000)))
    corpus = prepare_text(file, options=TextOptions(min_count=1), cache=cache).corpus
    train = corpus.split("train")
    assert train.dtype == np.uint32 and train.max() > 1 << 16
    assert corpus.vocabulary.decode(train[-2:]) == [f"w{len(train) // 2 - 1}", "<eos>"]


@pytest.mark.parametrize("end", ["ends here\n", "\n", "   \n", " " * 300 + "\n\n"])
@pytest.mark.parametrize("length", [97, 100])
def test_the_size_of_blocks_does_not_matter(length, end, path, cache, monkeypatch):
    path.write_text("one very long line, " * length + end + path.read_text())
    before = prepare_text(path, name="before", cache=cache).corpus
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    monkeypatch.setattr(encode, "CHUNK_TOKENS", 100)
    after = prepare_text(path, name="after", cache=cache).corpus
    assert after.header.splits == before.header.splits
    assert after.vocabulary == before.vocabulary


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bpe:300"])
def test_parts_and_processes_do_not_change_a_bit(tokenizer, path, cache, monkeypatch):
    options = TextOptions(tokenizer=tokenizer)
    whole = prepare_text(path, name="whole", options=options, cache=cache).corpus
    monkeypatch.setattr(text, "PART_BYTES", 4000)
    for processes in (1, 2):
        given = {"options": options, "processes": processes, "force": True, "cache": cache}
        found = prepare_text(path, name="parts", **given).corpus
        assert found.header.splits == whole.header.splits
        assert found.vocabulary == whole.vocabulary and found.token_counts == whole.token_counts


def test_an_error_in_another_process_is_that_of_one(path, cache, monkeypatch):
    monkeypatch.setattr(text, "PART_BYTES", 4000)
    content = path.read_bytes()
    path.write_bytes(content + b"\xff\n" + content)
    with pytest.raises(ValueError, match="mine.txt, line 800: text must be UTF-8, got byte 0xff"):
        prepare_text(path, cache=cache, processes=2)
    assert not [file for file in cache.rglob("*") if file.is_file()]


def test_too_many_distinct_tokens_are_refused_before_memory_is_full(path, cache, monkeypatch):
    monkeypatch.setattr(encode, "MAX_DISTINCT", 100)
    with pytest.raises(ValueError, match="at most 100 distinct tokens.*Try --tokenizer characters"):
        prepare_text(path, cache=cache)
    assert not [file for file in cache.rglob("*") if file.is_file()]


def test_memory_does_not_grow_with_the_text(path, cache, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(encode, "CHUNK_TOKENS", 1 << 14)
    content, peaks = path.read_text(), []
    for times in (2, 20):
        path.write_text(content * times)
        tracemalloc.start()
        prepare_text(path, name=f"x{times}", cache=cache)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
