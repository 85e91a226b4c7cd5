"""What commands share: progress on standard error, and results as JSON, table and page."""

import io
import json
from dataclasses import dataclass

import pytest
from rich.console import Console
from rich.table import Table

from highrank.cli import console as module
from highrank.cli.console import (
    check_outputs,
    plain_console,
    progress,
    show,
    training_progress,
    write_outputs,
)
from highrank.training.outcome import Progress


@dataclass(frozen=True)
class Found:
    name: str
    values: tuple[float, ...]


FOUND = Found("[x]", (1.0, 2.5))


def table(found):
    return f"{found.name}: {len(found.values)} values"


def test_a_result_is_a_table_and_its_page_or_json(capsys, tmp_path):
    show(FOUND, table, json=False, page=tmp_path / "page.html")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "[x]: 2 values" and second.endswith((tmp_path / "page.html").as_uri())
    show({"all": [FOUND]}, table, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"all": [{"name": "[x]", "values": [1.0, 2.5]}]}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_name_of_a_file_can_move_the_cursor(is_terminal, capsys, monkeypatch):
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    name = "\x1b[2J\x1b]0;title\x07.txt"
    with progress(f"Preparing {name}") as on_progress:
        on_progress(1.0, name)
    rows = Table("file")
    rows.add_row(name)
    show(name, lambda _: rows, json=False)
    plain_console(stderr=True).print(f"Run: {name}")
    printed = capsys.readouterr()
    assert "Run: \\x1b[2J\\x1b]0;title" in printed.err and "\\x1b[2J" in printed.out
    assert not any(sign in printed.out + printed.err for sign in ("\x1b[2J", "\x1b]", "\x07"))


def test_the_numbers_are_beside_the_page(tmp_path):
    page = tmp_path / "page.html"
    check_outputs(page, tmp_path / "picture.png")
    write_outputs(FOUND, "<p>ü</p>", page)
    assert page.read_text(encoding="utf-8") == "<p>ü</p>"
    assert json.loads((tmp_path / "page.json").read_text())["values"] == [1.0, 2.5]


def test_outputs_that_cannot_be_written_are_found_before_any_work(tmp_path):
    page = tmp_path / "page.html"
    with pytest.raises(ValueError, match="out must be a page and not end in .json, got"):
        check_outputs(tmp_path / "page.json")
    with pytest.raises(ValueError, match="picture must be a file of its own, got"):
        check_outputs(page, tmp_path / "page.json")
    with pytest.raises(ValueError, match="folder must exist"):
        check_outputs(page, tmp_path / "no" / "picture.png")


def test_lines_are_plain_rare_and_on_standard_error(capsys, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 1e9)
    with progress("Working") as on_progress:
        on_progress(0.25, "a quarter")
        on_progress(1.0, "the end")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["Working …", "Working 100% in 0 s: the end"]


def training(stage, fraction, step):
    return Progress(
        stage=stage,
        epoch=2,
        step=step,
        fraction=fraction,
        tokens_per_second=1234.5,
        train_loss=4.0,
        valid_loss=5.0,
    )


@pytest.fixture
def terminal(monkeypatch):
    """What is written to a terminal of 140 columns."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=140, color_system=None)
    monkeypatch.setattr(module, "SafeConsole", lambda **_options: console)
    return text


def test_a_bar_starts_anew_with_the_stage(terminal, monkeypatch):
    bars = []

    class Remembered(module.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, **options)
            bars.append(self)

    monkeypatch.setattr(module, "Progress", Remembered)
    with training_progress() as show_training:
        show_training(training("train", 1.0, 50))
        task = bars[0].tasks[0]
        assert task.finished
        show_training(training("finetune", 0.1, 51))
        assert not task.finished and task.completed == 0.1 and task.time_remaining != 0
        # Growth may take the fraction back a little; the bar stays the same.
        started = task.start_time
        show_training(training("finetune", 0.09, 52))
        assert task.start_time == started
    assert "finetune" in terminal.getvalue() and "epoch 2 step 52" in terminal.getvalue()
    assert "perplexity train 54.6, valid 148.4; 1,234 tokens/s" in terminal.getvalue()


def test_off_a_terminal_a_line_comes_with_every_validation(capsys):
    with training_progress() as show_training:
        show_training(training("train", 0.5, 1))
        show_training(training("train", 0.6, 2))
    numbers = "epoch 2 step 1: perplexity train 54.6, valid 148.4; 1,234 tokens/s"
    assert capsys.readouterr().err.splitlines() == ["train …", f"train  50% in 0 s: {numbers}"]
