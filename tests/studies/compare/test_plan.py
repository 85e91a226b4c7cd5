"""The question, the speed of a variant, the budget, and a plan that comes back from its file."""

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.data.corpus import MemoryCorpus
from highrank.data.prepare import prepare_text
from highrank.presets.dropout import dropout_of
from highrank.studies.compare import plan as plans
from highrank.studies.compare import presets
from highrank.studies.compare.plan import (
    SPARE,
    BudgetTooSmall,
    Regime,
    Speed,
    choose_dropout,
    divide_budget,
    read_plan,
    write_plan,
)
from highrank.studies.compare.presets import (
    COMPARISONS,
    Comparison,
    find_comparison,
    is_of_text,
    open_source,
    prepare_source,
)
from highrank.studies.compare.sentences import plan_note
from highrank.studies.compare.variant import OUTPUT_DROPOUT, Role
from highrank.training.budget import parse_duration


def speeds(*prices):
    return tuple(
        Speed(cpu=price, wall=2 * price, alone=price, valid=0.1, test=0.2, analysis=1.0)
        for price in prices
    )


def test_equal_tokens_share_the_time_by_their_price(make_plan):
    plan = make_plan("mos", speeds=speeds(1e-4, 3e-4))
    found = divide_budget(plan, 100.0, 10)
    assert found.cpu_seconds is None
    assert found.seconds == pytest.approx(100.0, rel=1e-3)
    assert found.cpu_of(1) == pytest.approx(3 * found.cpu_of(0))
    fixed = plans.NUM_POINTS * 0.1 + 0.3 + 1.0
    assert found.seconds_of(0) == pytest.approx(found.num_tokens * 1e-4 + fixed)
    assert divide_budget(replace(plan, jobs=2), 100.0, 10).num_tokens > 2 * found.num_tokens
    # Two threads take half as long as their CPU time.
    halves = tuple(replace(speed, alone=speed.cpu / 2) for speed in plan.speeds)
    threads = divide_budget(replace(plan, threads=2, speeds=halves), 100.0, 10)
    assert threads.num_tokens == pytest.approx(2 * found.num_tokens, rel=1e-3)


@pytest.mark.parametrize("equal", [("tokens",), ("time", "tokens")])
def test_a_busy_machine_gives_the_same_plan(make_plan, equal):
    quiet, busy = (
        make_plan("mos", equal=equal, speeds=[replace(one, wall=one.cpu * waiting) for one in some])
        for waiting, some in ((1.0, speeds(1e-4, 3e-4)), (5.0, speeds(1e-4, 3e-4)))
    )
    found = [divide_budget(plan, 100.0, 10) for plan in (quiet, busy)]
    assert found[0] == replace(found[1], speeds=quiet.speeds)
    assert found[0].seconds == pytest.approx(100.0, rel=1e-3)
    assert "busy" not in plan_note(found[0], str)
    assert "a second of CPU time takes 5.0 seconds" in plan_note(found[1], str)


def test_a_plan_that_evaluates_more_than_it_trains_says_what_helps(make_plan, monkeypatch):
    short = make_plan("mos", speeds=speeds(1e-3, 3e-3))
    long = replace(short, speeds=tuple(replace(one, valid=2.0, test=3.0) for one in short.speeds))
    short, long = (divide_budget(plan, 100.0, 10) for plan in (short, long))
    assert "--max-tokens" not in plan_note(short, str)
    assert long.evaluating > 0.5
    # All of so short a text is read already.
    assert "--max-tokens" not in plan_note(long, str)
    monkeypatch.setitem(presets.SIZES, "train", 20_000)
    presets.open_source.cache_clear()
    assert f"--max-tokens {4 * long.num_tokens} " in plan_note(long, str)


def test_equal_time_is_the_same_for_all_and_the_slowest_reaches_equal_tokens(make_plan):
    plan = make_plan("mos", speeds=speeds(1e-4, 3e-4), equal=("time", "tokens"))
    found = divide_budget(plan, 100.0, 10)
    assert found.regimes == (Regime.TOKENS, Regime.TIME)
    assert found.cpu_of(0) == found.cpu_of(1) == found.cpu_seconds
    assert found.seconds == pytest.approx(100.0, rel=1e-3)
    assert found.num_tokens * 3e-4 == pytest.approx(0.9 * found.cpu_seconds, rel=1e-3)


@pytest.mark.parametrize("equal", [("tokens",), ("time", "tokens")])
def test_a_budget_that_is_too_small_says_what_is_needed(make_plan, equal):
    plan = make_plan("mos", speeds=speeds(1e-4, 9e-2), equal=equal)
    message = r"at least ([\d.]+)m for 2 variants of 2 seeds, got 0\.0"
    with pytest.raises(BudgetTooSmall, match=message) as caught:
        divide_budget(plan, 1.0, 5_000)
    enough = parse_duration(caught.value.enough)
    assert divide_budget(plan, enough / SPARE, 5_000).num_tokens >= 5_000
    assert enough < 1.3 * 60 * float(re.search(message, str(caught.value))[1])


def test_all_lstms_have_one_dropout_by_what_a_control_reads(make_plan, folder):
    networks = ("awd-lstm", "transformer")
    plan = make_plan("mos", "untied-softmax", models=networks, num_tokens=40_000)
    found, (control, *_) = choose_dropout(plan, 1_000), plan.variants
    assert found.dropout == dropout_of(control.config, 40_000, 1_000) > 0
    for before, after in zip(plan.variants, found.variants, strict=True):
        if before.config.model.kind == "transformer":
            assert after == before
        else:
            own = OUTPUT_DROPOUT if after.role is Role.OTHER_SIZE else found.dropout
            assert after.config.model.options["hidden_dropout"] == found.dropout
            assert after.config.head.dropout == own
    timed = choose_dropout(replace(plan, cpu_seconds=8.0), 1_000)
    assert timed.dropout == dropout_of(control.config, 8.0 / 1e-4, 1_000) > found.dropout
    assert f"Dropout {found.dropout}, " in plan_note(found, str)
    write_plan(found, folder)
    assert read_plan(folder) == found


def test_a_plan_without_an_lstm_keeps_its_dropouts(make_plan):
    plan = make_plan(models=("transformer",))
    assert choose_dropout(plan, 1_000) == plan and plan.dropout is None


def test_dropout_is_chosen_for_texts_by_the_small_recipe():
    assert is_of_text(Comparison(corpus="my.txt"))
    assert not is_of_text(find_comparison("senses"))
    assert not is_of_text(find_comparison("paper-ablation-ptb"))


def test_the_speed_is_measured_also_on_a_short_corpus(variants, tiny, monkeypatch):
    monkeypatch.setattr("highrank.training.speed.TIMED_SECONDS", 0.05)
    seconds = {10: 1.0, 2: 2.0, 1: 4.0}
    clocks = []

    def seconds_of_test(model, test, batch_size, clock, sentence_end=None):
        clocks.append(clock)
        return seconds[batch_size]

    monkeypatch.setattr(plans, "seconds_of_test", seconds_of_test)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    control, mos = variants("mos")
    whole, comparison = open_source(tiny), Comparison(corpus=tiny, test_batch_size=2)
    splits = {name: whole.split(name)[:200] for name in ("train", "valid", "test")}
    short = MemoryCorpus(whole.vocabulary, splits)
    found = plans.measure_speed(control, short, comparison)
    assert 0 < found.cpu < 1 and found.wall >= 0.5 * found.cpu
    assert (found.valid, found.test) == (1.0, 2.0)
    # The control is also tested with a cache and at a temperature.
    with_baselines = replace(comparison, baselines=True)
    assert plans.measure_speed(control, short, with_baselines).test == 2 + 6 * 4
    assert plans.measure_speed(mos, short, with_baselines).test == 2.0
    assert set(clocks) == {time.thread_time}


def test_a_machine_that_sleeps_changes_no_plan_of_several_threads(variants, tiny, monkeypatch):
    monkeypatch.setattr("highrank.training.speed.TIMED_SECONDS", 0.01)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(plans, "seconds_of_test", lambda *_: 1.0)
    control, step = variants("mos")[0], plans.Trainer.step

    def slow_step(self, *arguments):
        time.sleep(0.1)
        return step(self, *arguments)

    monkeypatch.setattr(plans.Trainer, "step", slow_step)
    found = plans.measure_speed(control, open_source(tiny), Comparison(corpus=tiny))
    assert found.wall > 2 * found.alone


def test_a_plan_comes_back_from_its_file(make_plan, folder):
    plan = make_plan("mos", "adaptive-mos:2,start_noise=0.2", cpu_seconds=3.0)
    write_plan(plan, folder)
    assert read_plan(folder) == plan


@pytest.mark.parametrize("change", [{"version": 9}, {"seeds": "all"}, {"variants": [{}]}])
def test_a_file_that_is_no_plan_is_refused(make_plan, folder, change):
    write_plan(make_plan("mos"), folder)
    path = folder / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"plan.json must be the plan of a comparison: "):
        read_plan(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"equal": ("context",)}, "equal must have time or tokens, got context"),
        ({"equal": ("time",), "device": "meta"}, "equal time must be measured on the cpu, got"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": 10**5}, "seeds must be at most 1,000, got 100000"),
        ({"components": (2, 10**5)}, "components must be at most 1,024, got 100000"),
        ({"heads": ("mos:100000",)}, "components must be at most 1,024, got 100000"),
        ({"embedding": (2**63,)}, "embedding must be at most 2,147,483,647, got"),
        ({"hidden_sizes": (8, 10**30)}, "hidden-sizes must be at most 2,147,483,647, got"),
        ({"lr": float("inf")}, "lr must be a finite number, got inf"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"jobs": 2, "threads": 2}, "threads must be left out with several jobs, got 2"),
        ({"components": (4, 0)}, r"components must be at least 1, got \(4, 0\)"),
        ({"embedding": ()}, "embedding must be at least 1, got"),
        ({"models": ()}, "models must be at least one network, got none"),
        (
            {"models": ("transformer",), "is_paper_size": True},
            "models must be awd-lstm, got transformer",
        ),
        ({"budget": "soon"}, "a duration must be like 90s, 20m or 1.5h, got 'soon'"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message, tiny):
    with pytest.raises(ValueError, match=message):
        plans.make_plan(replace(Comparison(corpus=tiny), **change))


def test_a_preset_a_corpus_or_a_text_decides_the_defaults(tmp_path):
    assert find_comparison("paper-k-sweep-ptb") is COMPARISONS["paper-k-sweep-ptb"]
    assert find_comparison("factorised").embedding == (8, 31)
    assert find_comparison("low-rank").corpus == "low-rank"
    assert find_comparison(str(tmp_path)).corpus == str(tmp_path)
    with pytest.raises(ValueError, match=r"the path of a text, .*got 'sense': did you mean senses"):
        find_comparison("sense")


def test_a_source_is_a_language_or_the_beginning_of_a_corpus(tiny, tmp_path, monkeypatch):
    assert open_source(tiny).floor > 0
    lines = "\n".join(" ".join(f"w{n % 7}" for n in range(i, i + 9)) for i in range(200))
    (tmp_path / "text.txt").write_text(lines)
    path = str(prepare_text(tmp_path / "text.txt", cache=tmp_path / "cache").corpus.path)
    whole, part = open_source(path), open_source(path, 400)
    assert len(part.split("train")) == 400 and len(part.split("test")) <= 50
    np.testing.assert_array_equal(part.split("train"), whole.split("train")[:400])
    assert part.vocabulary == whole.vocabulary and open_source(path, 10**9) is not part
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))
    assert prepare_source(str(tmp_path / "text.txt"), lambda *_: None) == "text"
