"""The corpus of a run is known without its tokens, and found by them wherever it is."""

import json
import shutil

import pytest

from highrank.data import prepare_text
from highrank.data.prepare import TextOptions
from highrank.run.corpus import prepare_command, read_record, write_record


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "my tale.txt").write_text("one two three two one\n" * 50)
    return prepare_text(tmp_path / "my tale.txt").corpus


@pytest.fixture
def record(corpus, tmp_path):
    write_record(tmp_path / "corpus.json", corpus)
    return tmp_path / "corpus.json"


def test_what_the_corpus_was_needs_no_tokens(corpus, record):
    shutil.rmtree(corpus.path)
    found = read_record(record, "my-tale")
    assert found.header == corpus.header and found.path == corpus.path
    assert (found.name, found.level) == ("my-tale", "word")


def test_the_corpus_is_found_where_it_was_under_its_name_and_under_another(corpus, record):
    found = read_record(record, "my-tale")
    assert found.split("valid").tolist() == corpus.split("valid").tolist()
    for place in ("my-tale", "other"):
        moved = corpus.path.with_name(place)
        corpus.path.rename(moved)
        content = json.loads(record.read_text()) | {"path": "/nowhere"}
        record.write_text(json.dumps(content))
        assert read_record(record, "my-tale").prepared.path == moved
        moved.rename(corpus.path)


def test_another_text_of_the_same_name_is_not_taken(corpus, record, tmp_path):
    (tmp_path / "my tale.txt").write_text("four five four six\n" * 50)
    prepare_text(tmp_path / "my tale.txt", force=True)
    with pytest.raises(ValueError, match=r"my-tale has other tokens\): run `highrank data prepare"):
        read_record(record, "my-tale").split("valid")


def test_a_missing_corpus_is_named_with_the_command_that_makes_it(corpus, record):
    shutil.rmtree(corpus.path)
    with pytest.raises(ValueError, match="my-tale that the run was trained on must be at .* or in"):
        read_record(record, "my-tale").split("valid")
    assert prepare_command(corpus.header) == (
        "highrank data prepare 'my tale.txt' --name my-tale --tokenizer words --min-count 3"
    )


def test_the_command_has_all_options(tmp_path):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("One two three two one\n" * 50)
    options = TextOptions(tokenizer="characters", lower=True, max_vocab=9, min_count=1)
    corpus = prepare_text(tmp_path, name="x", options=options, cache=tmp_path / "cache").corpus
    assert prepare_command(corpus.header) == (
        "highrank data prepare FOLDER --name x --tokenizer characters --min-count 1 "
        "--max-vocab 9 --lower"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "x"}, "it must have format"),
        ({"version": 9}, "it must have format .* version 1, got .* and 9"),
        ({"path": 3}, "it must have the path of a corpus, got 3"),
        ({"path": "\0"}, "it must have the path of a corpus"),
        ({"header": []}, "its header: it must be an object"),
    ],
)
def test_a_damaged_record_is_named(fields, message, record):
    record.write_text(json.dumps(json.loads(record.read_text()) | fields))
    with pytest.raises(ValueError, match=f"corpus.json must be the record of a corpus: {message}"):
        read_record(record, "my-tale")
