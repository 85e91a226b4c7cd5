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
    with pytest.raises(ValueError, match="one of train, valid, test, got 'dev'"):
        corpus.split("dev")


def test_a_changed_token_file_is_found_by_its_hash(folder):
    file = folder / "test.bin"
    file.write_bytes(file.read_bytes()[::-1])
    corpus = load_corpus(folder)
    with pytest.raises(ValueError, match="test.bin must have sha256 .* --force"):
        corpus.split("test")


def change(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("valid.bin", b"\0", r"valid.bin must have \d+ bytes, got 1: .*data prepare .* --force"),
        ("train.bin", None, r"train.bin must have \d+ bytes, got 0: .*--force"),
        ("vocabulary.json", None, "vocabulary.json.*--force"),
        ("vocabulary.json", b"{}", "must be a vocabulary.*--force"),
        (
            "vocabulary.json",
            b'{"format": "highrank vocabulary", "version": 1, "words": ["<unk>", "<eos>", "one"]}',
            "must be the vocabulary that corpus.json names",
        ),
    ],
)
def test_damaged_and_missing_files_are_named(name, content, message, folder):
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
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
