"""`highrank data` as a user meets it."""

import json
import os
import signal
import time

import pytest

from highrank.cli.main import main
from highrank.data.catalog import CATALOG


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["highrank", "data", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("".join(f"It is {number % 9} o'clock, dear.\n" for number in range(500)))
    return file


def test_the_list_shows_every_corpus_its_licence_and_what_is_prepared(run, path, tmp_path):
    assert run("prepare", path)[0] == 0
    code, printed, _ = run("list")
    assert code == 0 and all(name in printed for name in CATALOG)
    for part in ("929,589", "LDC", "CC BY-SA", "mine.txt", "yes", "no"):
        assert part in printed
    assert str(tmp_path / "cache") in "".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


def test_the_list_as_json_has_addresses_and_folders(run, path, tmp_path):
    run("prepare", path)
    listings = {listing["name"]: listing for listing in json.loads(run("list", "--json")[1])}
    assert list(listings) == [*CATALOG, "mine"]
    assert len(listings["penn-treebank"]["addresses"]) == 3
    assert listings["mine"]["prepared"] == str(tmp_path / "cache" / "corpora" / "mine")
    assert listings["wikitext-2"]["prepared"] is None


def test_preparing_says_what_came_out_where_it_is_and_what_is_next(run, path, tmp_path):
    code, printed, errors = run("prepare", path)
    assert code == 0 and "Preparing" in errors and "Preparing" not in printed
    for part in ("train", "valid", "test", "<unk>", "mine is in", "highrank train --corpus mine"):
        assert part in printed
    code, printed, _ = run("prepare", path)
    assert code == 0 and "nothing was done" in printed
    elsewhere = tmp_path / "[old] place"
    printed = run("prepare", path, "--cache", elsewhere)[1]
    assert f"highrank train --corpus '{elsewhere / 'corpora' / 'mine'}'" in printed


def test_options_reach_the_corpus_and_json_tells_all(run, path, tmp_path):
    options = ("--level", "char", "--min-count", "2", "--lower", "--name", "other", "--json")
    code, printed, _ = run("prepare", path, *options, "--cache", tmp_path / "elsewhere")
    result = json.loads(printed)
    assert code == 0 and result["is_new"] and result["level"] == "char"
    assert result["path"] == str(tmp_path / "elsewhere" / "corpora" / "other")
    assert result["recipe"]["min_count"] == 2 and result["recipe"]["lower"]
    assert result["splits"]["train"]["num_tokens"] > 1000


def test_tokens_are_called_what_they_are(run, path):
    assert "mine: 17 distinct words" in run("prepare", path)[1]
    assert (
        "signs: 27 distinct characters"
        in run("prepare", path, "--level", "char", "--name", "signs")[1]
    )


def test_a_different_text_of_the_same_name_needs_force(run, path):
    run("prepare", path)
    path.write_text(path.read_text() * 2)
    code, _, errors = run("prepare", path)
    assert code == 2 and "--force" in errors
    assert run("prepare", path, "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.txt",), "one of sotu, penn-treebank"),
        (("penn-treebank", "--level", "char"), "penn-treebank has a fixed protocol"),
        (("penn-treebank", "--from", "nowhere"), "in a folder or an archive, got nowhere"),
        (("PATH", "--from", "."), "--from must go with one of sotu"),
        (("PATH", "--min-count", "0"), "min_count must be at least 1, got 0"),
        (("PATH", "--name", "a/b"), "must be letters"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments, message, run, path):
    arguments = [path if argument == "PATH" else argument for argument in arguments]
    code, printed, errors = run("prepare", *arguments)
    assert code == 2 and message in errors + printed and "Traceback" not in errors


def test_bad_text_is_reported_with_file_and_line(run, path):
    path.write_bytes(path.read_bytes() + b"\xff\n")
    code, _, errors = run("prepare", path)
    assert code == 2 and "mine.txt, line 501: text must be UTF-8" in errors


def test_help_names_both_commands_and_every_option(run):
    _, printed, _ = run()
    assert "list" in printed and "prepare" in printed
    _, printed, _ = run("prepare", "--help")
    for option in ("--from", "--cache", "--level", "--min-count", "--max-vocab", "--lower"):
        assert option in printed


def test_ctrl_c_while_preparing_leaves_nothing(path, tmp_path, child):
    path.write_text(path.read_text() * 3000)
    cache = tmp_path / "cache"
    environment = os.environ | {"HIGHRANK_CACHE": str(cache)}
    process = child("-m", "highrank", "data", "prepare", path, env=environment)
    deadline = time.monotonic() + 60
    while not list(cache.rglob("*.numbers")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors
    assert list((cache / "corpora").iterdir()) == []
