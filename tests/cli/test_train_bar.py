"""What training shows: a bar on a terminal, lines elsewhere."""

import io

import pytest
from rich.console import Console

from highrank.cli import train as module
from highrank.cli.train import training_bar
from highrank.training.loop import Progress


def progress(stage, share, step):
    return Progress(
        stage=stage,
        epoch=2,
        step=step,
        share=share,
        tokens_per_second=1234.5,
        train_loss=4.0,
        valid_loss=5.0,
    )


@pytest.fixture
def terminal(monkeypatch):
    """What is written to a terminal of 120 columns."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(module, "Console", lambda **_options: console)
    return text


def test_a_bar_starts_anew_with_the_stage(terminal, monkeypatch):
    bars = []

    class Remembered(module.Bar):
        def __init__(self, *columns, **options):
            super().__init__(*columns, **options)
            bars.append(self)

    monkeypatch.setattr(module, "Bar", Remembered)
    with training_bar() as show:
        show(progress("train", 1.0, 50))
        task = bars[0].tasks[0]
        assert task.finished
        show(progress("finetune", 0.1, 51))
        assert not task.finished and task.completed == 0.1 and task.time_remaining != 0
        # Growth may take the share back a little; the bar goes on.
        started = task.start_time
        show(progress("finetune", 0.09, 52))
        assert task.start_time == started
    assert "finetune epoch 2 step 52" in terminal.getvalue()
    assert "perplexity train 54.6, valid 148.4; 1,234 tokens/s" in terminal.getvalue()


def test_off_a_terminal_a_line_comes_with_every_validation(capsys):
    with training_bar() as show:
        show(progress("train", 0.5, 1))
        show(progress("train", 0.6, 2))
    assert capsys.readouterr().err.splitlines() == [
        " 50% train epoch 2 step 1: perplexity train 54.6, valid 148.4; 1,234 tokens/s"
    ]
