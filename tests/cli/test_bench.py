"""`highrank bench` as a user meets it; memory is not measured, for the sake of time."""

import json
from dataclasses import replace

import pytest

from highrank.cli.bench import BENCHMARKS
from highrank.cli.main import main
from highrank.studies.bench import harness, loss
from highrank.studies.bench.baselines import TINY
from highrank.studies.bench.harness import Peak


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """The compiled variant is skipped: compiling takes longer than all tests of this file."""
    monkeypatch.setattr("highrank.studies.bench.baselines.shutil.which", lambda name: None)


@pytest.fixture
def highrank(monkeypatch, capsys, tmp_path):
    """Run a command on a tiny shape, in an empty folder; its code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loss, "SHAPES", {"ptb": replace(TINY, name="ptb")})
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(2**20))

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["highrank", *arguments])
        try:
            main()
        except SystemExit as end:
            return end.code, capsys.readouterr()
        return 0, capsys.readouterr()

    return run


def test_page_numbers_and_picture_are_written_and_a_table_is_printed(highrank, tmp_path):
    code, printed = highrank("bench", "loss", "--rounds", "1", "--picture", "bench.png")
    assert code == 0, printed.err
    assert "log-space" in printed.out and "highrank-bench-loss.html" in printed.out
    assert (tmp_path / "highrank-bench-loss.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "highrank-bench-loss.json").read_text())
    assert numbers["rounds"] == 1 and numbers["shapes"][0]["shape"]["name"] == "ptb"


def test_json_is_all_that_is_printed_and_what_is_written(highrank, tmp_path):
    code, printed = highrank("bench", "loss", "--quick", "--json", "--out", "page.html")
    assert code == 0, printed.err
    assert json.loads(printed.out) == json.loads((tmp_path / "page.json").read_text())
    assert json.loads(printed.out)["rounds"] == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--shapes", "ptb", "foo"), "shapes must be among ptb, got foo"),
        (("--rounds", "0"), "rounds must be at least 1, got 0"),
        (("--chunk-bytes", "0"), "chunk_bytes must be at least 1, got 0"),
        (("--out", "numbers.json"), "out must be a page and not end in .json, got numbers.json"),
        (("--out", "nowhere/page.html"), "folder must exist"),
    ],
)
def test_mistakes_end_with_one_line_and_leave_no_file(highrank, tmp_path, arguments, message):
    code, printed = highrank("bench", "loss", *arguments)
    assert code == 2
    assert message in printed.err and "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("bench",), ("bench", "--help")])
def test_help_names_every_benchmark(highrank, arguments):
    code, printed = highrank(*arguments)
    assert code == 0
    assert "highrank bench" in printed.out and "time and memory" in printed.out
    assert all(name in printed.out for name in BENCHMARKS)


def test_help_explains_every_option_and_names_the_shapes(highrank):
    code, printed = highrank("bench", "loss", "--help")
    assert code == 0
    options = ("--shapes", "--rounds", "--quick", "--chunk-bytes", "--json", "--out", "--picture")
    for words in (*options, "ptb", "wt2", "gpt2", "wide"):
        assert words in printed.out


def test_an_unknown_benchmark_is_an_error(highrank):
    code, printed = highrank("bench", "lsos")
    assert code == 2
    assert "lsos" in printed.out + printed.err
