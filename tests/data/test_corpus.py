"""Prepared corpora: what loads, what is refused."""

import json

import numpy as np
import pytest

from highrank.data import load_corpus, prepare_text


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("one two three two one\n" * 50)
    return prepare_text(path, cache=tmp_path / "cache").corpus.path


def test_splits_are_read_only_maps_of_the_token_files(folder):
    corpus = load_corpus(folder)
    train = corpus.split("train")
    assert isinstance(train, np.memmap) and train.dtype == np.uint16
    assert not train.flags.writeable
    assert corpus.vocabulary.decode(train[:6]) == ["one", "two", "three", "two", "one", "<eos>"]
    assert corpus.name == "mine" and corpus.level == "word"
    assert {name: len(corpus.split(name)) for name in corpus.header.splits} == {
        name: split.num_tokens for name, split in corpus.header.splits.items()
    }


def test_there_are_three_splits(folder):
    with pytest.raises(ValueError, match="one of train, valid, test, got 'dev'"):
        load_corpus(folder).split("dev")


def test_a_truncated_token_file_is_found_by_its_size(folder):
    file = folder / "valid.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"valid.bin must have \d+ bytes.*data prepare .* --force"):
        load_corpus(folder)


def test_a_changed_token_file_is_found_by_its_hash(folder):
    file = folder / "test.bin"
    file.write_bytes(file.read_bytes()[::-1])
    corpus = load_corpus(folder)
    with pytest.raises(ValueError, match="test.bin must have sha256 .* --force"):
        corpus.split("test")


@pytest.mark.parametrize("name", ["vocabulary.json", "train.bin"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{name}.*--force"):
        load_corpus(folder)


def change(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_another_vocabulary_is_refused(folder):
    change(folder / "vocabulary.json", words=["<unk>", "<eos>", "one", "three", "two"])
    with pytest.raises(ValueError, match="must be the vocabulary that corpus.json names"):
        load_corpus(folder)


def test_a_broken_vocabulary_is_refused(folder):
    (folder / "vocabulary.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a vocabulary.*--force"):
        load_corpus(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "other"}, "format 'highrank corpus' and version 3, got 'other' and 3"),
        ({"version": 9}, "version 3, got 'highrank corpus' and 9"),
        ({"dtype": "object"}, "dtype must be one of <u2, <u4, got 'object'"),
        ({"splits": {}}, "splits must be train, valid, test"),
        ({"sources": [{"name": "x"}]}, "sources.num_bytes is missing"),
        ({"sources": []}, "sources must name a file"),
        ({"surprise": 1}, "known fields only, got 'surprise'"),
    ],
)
def test_a_foreign_header_is_refused(fields, message, folder):
    change(folder / "corpus.json", **fields)
    with pytest.raises(ValueError, match=message):
        load_corpus(folder)


def test_a_folder_without_a_header_is_refused_with_the_command(tmp_path):
    with pytest.raises(ValueError, match="no corpus.json: .* `highrank data prepare"):
        load_corpus(tmp_path)
    with pytest.raises(ValueError, match="no prepared corpus is at .*nowhere"):
        load_corpus(tmp_path / "nowhere")
