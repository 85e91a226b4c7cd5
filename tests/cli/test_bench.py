"""`highrank bench` as a user meets it; memory is not measured, for the sake of time."""

import json
from dataclasses import replace

import pytest

from highrank.cli.bench import BENCHMARKS
from highrank.studies.bench import baselines, harness, heads, loss
from highrank.studies.bench.baselines import TINY
from highrank.studies.bench.harness import Peak


@pytest.fixture
def bench(monkeypatch, highrank, tmp_path):
    """Run a benchmark on tiny shapes, in an empty folder; its code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loss, "SHAPES", {"ptb": replace(TINY, name="ptb")})
    monkeypatch.setattr(heads, "SIZES", ((8, 100),))
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(2**20))
    monkeypatch.setattr(harness.gc, "collect", lambda: 0)
    # Compiling takes longer than all tests of this file.
    monkeypatch.setattr(baselines.shutil, "which", lambda name: None)
    return lambda *arguments: highrank("bench", *arguments)


def test_page_numbers_and_picture_are_written_and_a_table_is_printed(bench, tmp_path):
    code, out, errors = bench("loss", "--rounds", "1", "--picture", "bench.png")
    assert code == 0, errors
    assert "log-space" in out and "highrank-bench-loss.html" in out
    assert (tmp_path / "highrank-bench-loss.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "highrank-bench-loss.json").read_text())
    assert numbers["rounds"] == 1 and numbers["groups"][0]["name"] == "ptb"


def test_json_is_all_that_is_printed_and_what_is_written(bench, tmp_path):
    code, out, errors = bench("loss", "--quick", "--json", "--out", "page.html")
    assert code == 0, errors
    assert json.loads(out) == json.loads((tmp_path / "page.json").read_text())
    assert json.loads(out)["rounds"] == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("loss", "--shapes", "ptb", "foo"), "shapes must be among ptb, got foo"),
        (("heads", "--picture", "."), "the output must be a file, got the folder ."),
        (("loss", "--rounds", "0"), "rounds must be at least 1, got 0"),
    ],
)
def test_mistakes_end_with_one_line_and_leave_no_file(bench, tmp_path, arguments, message):
    code, _, errors = bench(*arguments)
    assert code == 2
    assert message in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_without_a_benchmark_all_are_named_and_an_unknown_one_is_an_error(bench):
    code, out, _ = bench()
    assert code == 0 and "time and memory" in out and all(name in out for name in BENCHMARKS)
    code, out, errors = bench("lsos")
    assert code == 2 and "lsos" in out + errors
