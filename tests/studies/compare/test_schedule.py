"""A whole comparison: trained, stopped, resumed, summarised, shown."""

import csv
import io
import os
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from highrank.studies.compare import run as run_module
from highrank.studies.compare.measure import summarise
from highrank.studies.compare.page import compare_csv, compare_page, compare_picture
from highrank.studies.compare.schedule import train
from highrank.studies.compare.table import compare_table, plan_table
from highrank.training.signals import Stopped


def printed(renderable):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


@pytest.fixture
def trained(monkeypatch):
    """Which slices were trained."""
    found, advance = [], run_module.VariantRun.advance

    def note(self, cpu_seconds):
        found.append((self.index, self.seed))
        return advance(self, cpu_seconds)

    monkeypatch.setattr(run_module.VariantRun, "advance", note)
    return found


def test_a_comparison_is_trained_in_turns_and_never_twice(written, folder, trained):
    plan = written("mos", "pointer")
    shown = []
    train(plan, folder, lambda fraction, text: shown.append(fraction))
    assert set(trained) == {(index, seed) for index in range(3) for seed in (0, 1)}
    assert [seed for _, seed in trained] == sorted(seed for _, seed in trained)
    assert shown == sorted(shown) and shown[-1] == pytest.approx(1.0)
    trained.clear()
    train(plan, folder)
    assert trained == []


def test_what_ctrl_c_leaves_is_reported_and_resumed(written, folder, trained, monkeypatch):
    plan, step = written("mos"), run_module.Run._train_window
    count = []

    def press(self):
        step(self)
        count.append(1)
        if len(count) == 50:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run_module.Run, "_train_window", press)
    with pytest.raises(Stopped) as stopped:
        train(plan, folder)
    assert stopped.value.args == (signal.SIGINT,)
    partial = summarise(plan, folder)
    assert not partial.is_complete and "finished" in {run.state for run in partial.runs}
    assert "highrank compare --resume" in printed(compare_table(partial))
    assert "So far: One seed decides nothing" in partial.answer
    assert "<h1>" in compare_page(partial)
    finished = {(run.variant, run.seed) for run in partial.runs if run.state == "finished"}
    trained.clear()
    train(plan, folder)
    names = {(plan.variants[index].name, seed) for index, seed in trained}
    assert not names & finished
    assert summarise(plan, folder).is_complete


def test_a_signal_while_a_run_is_measured_loses_nothing(written, folder, monkeypatch):
    plan, measure = written("mos"), run_module.VariantRun._analyse

    def press(self):
        os.kill(os.getpid(), signal.SIGTERM)
        measure(self)

    monkeypatch.setattr(run_module.VariantRun, "_analyse", press)
    with pytest.raises(Stopped) as stopped:
        train(plan, folder)
    assert stopped.value.args == (signal.SIGTERM,)
    monkeypatch.undo()
    before = summarise(plan, folder).runs[0]
    assert before.state == "unfinished" and before.marks
    train(plan, folder)
    after = summarise(plan, folder).runs[0]
    assert after.state == "finished" and after.marks == before.marks


def test_the_report_has_every_variant(written, folder):
    plan = written("mos", "moc", "mos:2", cpu_seconds=0.05, cache=True)
    train(plan, folder)
    result = summarise(plan, folder, elapsed=3.0)
    assert result.is_complete and [regime.name for regime in result.regimes] == ["tokens", "time"]
    assert [variant.rank_bound for variant in result.variants] == [6, None, 6, None]
    assert result.floor is not None and result.recommendation is not None
    text = printed(compare_table(result))
    for words in ("Equal tokens", "Equal time", "control + cache", "MoS, K = 3", "Recommended"):
        assert words in text
    page = compare_page(result, "highrank compare tiny")
    assert result.answer.split(":")[0] in page and page.count("<svg") == 9
    assert "compare</span> <span" in page and "http-equiv" in page
    # Heads are explained.
    assert "What it is: " in text and "<dd>K softmaxes that share one output embedding" in page
    rows = list(csv.DictReader(io.StringIO(compare_csv(result))))
    # Two regimes, two seeds; the control has two more with the cache.
    assert len(rows) == 4 * 4 + 4
    assert {row["state"] for row in rows} == {"finished"}
    picture = folder / "curves.png"
    compare_picture(result, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_plan_is_printed_before_it_runs(make_plan):
    text = printed(plan_table(make_plan("mos", cpu_seconds=0.5)))
    assert "2 variants × 2 seeds, measured at 1,200 tokens, and at 0 CPU seconds" in text.replace(
        "\n", " "
    )
    assert "control, K = 1" in text and "24-16" in text


@pytest.mark.parametrize(("waiting", "is_busy"), [(1.0, False), (2.0, True)])
def test_short_runs_and_busy_machines_are_called_so(
    make_plan, make_records, folder, monkeypatch, waiting, is_busy
):
    plan = make_plan("mos")
    runs = make_records(plan, [5.0, 5.01], [4.9, 4.92])
    runs = tuple(replace(run, seconds=run.cpu_seconds * waiting) for run in runs)
    monkeypatch.setattr("highrank.studies.compare.measure.read_runs", lambda *_: runs)
    text = " ".join(printed(compare_table(summarise(plan, folder))).split())
    # The curves of these runs fall as the tokens to the power of -0.1.
    assert "each run has read 0.6 times the 2,000 training tokens. Twice as many" in text
    assert "perplexity by about 28.5 %" in text
    assert ("a second of CPU time took 2.0 seconds" in text) == is_busy
