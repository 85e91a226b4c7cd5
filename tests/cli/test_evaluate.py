"""`highrank evaluate` as a user meets it."""

import csv
import errno
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import pytest

from highrank import ngram
from highrank.cli.evaluate.options import DynamicOptions
from highrank.data.catalog import find_corpus
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import (
    CONVENTIONS,
    DynamicSettings,
    evaluate_dynamically,
    gradient_statistics,
    score_dynamically,
)
from highrank.evaluation.search import MOST_WIDENINGS
from highrank.evaluation.static import evaluate, summed
from highrank.run.loading import load


@pytest.fixture(scope="module")
def run(trained):
    model, vocabulary = load(trained / "tiny")
    corpus = find_corpus("tale", cache=trained / "cache")
    return model, vocabulary, {name: corpus.split(name) for name in ("train", "valid", "test")}


@pytest.fixture
def results(highrank):
    """Call with --json; returns the results."""

    def call(*arguments):
        code, printed, errors = highrank("evaluate", "tiny", "--json", *arguments)
        assert code == 0, errors
        return json.loads(printed)["results"]

    return call


def test_the_options_of_static_evaluation_and_the_results_are_passed_on(highrank, trained, run):
    code, printed, errors = highrank("evaluate", "tiny", "--batch-size", 1, "--compat", "mos")
    assert code == 0 and "Evaluating on valid" in errors and "Evaluating" not in printed
    files = [line.removeprefix("Result: ") for line in printed.splitlines() if "Result: " in line]
    assert len(files) == 2
    for file in files:
        found = json.loads((trained / file).read_text())
        tokens = run[2][found["split"]]
        want = evaluate(run[0], tokens, 1).nats * (len(tokens) - 1) / len(tokens)
        assert found["nats"] == pytest.approx(want) and found["settings"]["compat"] == "mos"
        assert f"{found['value']:.2f}" in printed and f"{found['num_tokens']:,}" in printed
        assert len(found["data_sha256"]) == len(found["model_sha256"]) == 64
    assert max(map(len, printed.splitlines()[:9])) <= 80


def test_an_n_gram_alone_and_a_temperature_are_baselines_on_the_same_tokens(results, run, highrank):
    found = results("--baselines", "--split", "valid")
    assert [one["method"] for one in found] == ["static", "5-gram", "temperature"]
    static, alone, temperature = found
    assert temperature["nats"] <= static["nats"] + 1e-6
    assert temperature["search"]["temperature"]["trials"][0]["temperature"] == 1.0
    static, alone, _ = results("--baselines", "--split", "valid", "--batch-size", 2)
    train, valid = run[2]["train"], run[2]["valid"]
    half = len(valid) // 2
    table = ngram.build(train, len(run[1]), 5).table
    want = [table.score(valid[i : i + half]).mean() for i in (0, half)]
    assert alone["method"] == "5-gram" and alone["nats"] == pytest.approx(-sum(want) / 2)
    assert alone["num_tokens"] == static["num_tokens"] and not alone["model_sha256"]
    code, printed, _ = highrank("evaluate", "tiny", "--all", "--baselines", "--split", "test")
    assert code == 0 and "5-gram: modified Kneser–Ney" in printed


def test_a_fitted_temperature_is_not_called_a_search(highrank):
    code, printed, _ = highrank("evaluate", "tiny", "--baselines", "--split", "test")
    assert code == 0 and "temperature: " in printed
    assert "--search" not in printed and "Settings:" not in printed


def test_dynamic_is_the_function_with_the_given_settings(results, run, trained):
    model, _, splits = run
    settings = DynamicSettings(lr=0.01, epsilon=0.01, decay=0.002, segment=7, adapt=("head",))
    statistics = gradient_statistics(model, splits["train"], segment=7)
    options = ("--dynamic.lr", 0.01, "--dynamic.epsilon", 0.01, "--dynamic.segment", 7)
    (found,) = results("--dynamic", "--split", "test", "--dynamic.adapt", "head", *options)
    want = evaluate_dynamically(model, splits["test"], settings, statistics)
    assert found["nats"] == pytest.approx(want.nats, rel=1e-6)
    assert found["nats"] != pytest.approx(evaluate(model, splits["test"], 1).nats, rel=1e-5)
    assert found["settings"]["dynamic"]["adapt"] == ["head"]
    assert list((trained / "tiny").glob("statistics-*.safetensors"))


def test_a_cache_goes_on_top_of_a_model_that_learns(results, run):
    model, _, splits = run
    options = ("--cache.window", 30, "--cache.theta", 0.5, "--cache.weight", 0.2)
    learning = ("--dynamic.lr", 0.001, "--dynamic.epsilon", 0.01)
    (found,) = results("--dynamic", "--cache", "--split", "test", *options, *learning)
    segments = score_dynamically(
        model,
        splits["test"],
        DynamicSettings(lr=0.001, epsilon=0.01),
        gradient_statistics(model, splits["train"]),
    )
    want = summed(with_cache(segments, CacheSettings(window=30, theta=0.5, weight=0.2)))
    assert found["nats"] == pytest.approx(want.nats, rel=1e-6)
    assert found["method"] == "dynamic+cache"


def test_a_search_shows_what_it_tried_on_the_tokens_asked_for(highrank):
    options = ("--dynamic.lr", 1e-6, 1e-3, "--dynamic.epsilon", 0.01, "--dynamic.decay", 0.01)
    both = ("--dynamic", "--search", *options, "--search-tokens", 50)
    code, printed, _ = highrank("evaluate", "tiny", *both)
    assert code == 0 and "dynamic: tried on 50 tokens of valid" in printed
    # Static is a row of its own.
    assert re.search(r"^ +0 +– +– +\d", printed, re.MULTILINE)


def test_per_token_files_and_independent_lines_are_passed_on(results, tmp_path):
    text, out = tmp_path / "mine.txt", tmp_path / "out.csv"
    text.write_text("the cat saw an axolotl\n\nthe dog slept\n")
    (whole,) = results("--text", text, "--per-token", out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    mean = sum(float(row["surprisal_bits"]) for row in rows) / len(rows)
    assert mean == pytest.approx(whole["bits"], rel=1e-6) and whole["num_tokens"] == len(rows) == 10
    (apart,) = results("--text", text, "--per-token", out, "--independent-lines")
    assert whole["split"] == "text mine.txt" and apart["nats"] != whole["nats"]


def test_all_methods_are_rows_of_one_table(highrank, results, run):
    model, _, splits = run
    learning = ("--dynamic.lr", 0.001, "--dynamic.epsilon", 0.01)
    found = results("--all", *learning, "--cache.window", 30, "--threads", 1)
    names = [(row["split"], row["method"]) for row in found]
    methods = ("static", "dynamic", "cache")
    assert names == [(split, method) for split in ("valid", "test") for method in methods]
    static, dynamic, cache = found[:3]
    assert static["nats"] == evaluate(model, splits["valid"], 1).nats
    assert dynamic["settings"]["dynamic"]["lr"] == 0.001 and dynamic["nats"] != static["nats"]
    assert cache["settings"]["cache"]["window"] == 30 and "dynamic" not in cache["settings"]
    assert len({row["num_tokens"] for row in found[:3]}) == 1
    assert all(0 < row["bits_per_byte"] == row["bits_per_char"] for row in found)
    for split in ("valid", "test"):
        rows = [row for row in found if row["split"] == split]
        best = min(rows, key=lambda row: row["nats"])
        assert [row["is_best"] for row in rows] == [row is best for row in rows]


def test_without_settings_none_is_worse_than_static_on_valid(highrank, results):
    """The best of a few is taken, on so many tokens as the split has here."""
    static, dynamic, cache = results("--all", "--split", "valid", "--threads", 1)
    assert max(dynamic["nats"], cache["nats"]) <= static["nats"] + 1e-6
    nats = {trial["lr"]: trial["nats"] for trial in dynamic["search"]["dynamic"]["trials"]}
    assert list(nats)[:4] == [0, 1e-5, 2e-5, 5e-5]
    # Further ones are tried as long as the best is at the edge, as it is here.
    best = min(nats, key=nats.get)
    assert best > 5e-5 and (best < max(nats) or len(nats) == 4 + MOST_WIDENINGS)
    assert len(cache["search"]["cache"]["trials"]) >= 127
    printed = " ".join(highrank("evaluate", "tiny", "--cache", "--split", "test")[1].split())
    assert "static (lr 0, weight 0) among those that were tried" in printed
    assert "--search tries more settings" in printed


def test_without_its_corpus_a_run_has_the_default_cache(highrank, monkeypatch, broken, tmp_path):
    monkeypatch.setattr("highrank.run.corpus.RecordedCorpus.is_found", False)
    (tmp_path / "mine.txt").write_text("the cat saw it\n")
    options = ("--cache", "--text", tmp_path / "mine.txt", "--json")
    (found,) = json.loads(highrank("evaluate", broken, *options)[1])["results"]
    assert found["settings"]["cache"] == asdict(CacheSettings()) and found["search"] == {}


def test_what_is_finished_is_printed_when_the_next_fails(highrank, monkeypatch):
    import highrank.evaluation.result as module

    real = module.evaluate_dataset

    def fail(loaded, dataset, *rest, **options):
        if dataset.name == "test":
            raise ValueError("The loss on test is nan.")
        return real(loaded, dataset, *rest, **options)

    monkeypatch.setattr(module, "evaluate_dataset", fail)
    code, printed, errors = highrank("evaluate", "tiny")
    assert code == 2 and errors.endswith("highrank: The loss on test is nan.\n")
    assert "valid" in printed and printed.count("Result: ") == 1


def test_a_full_disk_loses_no_result(highrank, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    code, printed, errors = highrank("evaluate", "tiny", "--split", "test")
    assert code == 2 and "perplexity" in printed and "Result: " not in printed
    message = r"highrank: The disk is full: tiny/results/\S+-static-test\S*\.json was not written\."
    assert re.fullmatch(message, errors.splitlines()[-1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the newt saw an axolotl and an axolotl", "5 of 9 tokens; 3 distinct words: an, axolotl,"),
        ("the axolotl slept", "1 of 4 tokens; 1 distinct word: axolotl\n"),
        ("the old cat slept", None),
    ],
)
def test_unknown_tokens_are_shown_once(text, shown, highrank, tmp_path):
    (tmp_path / "mine.txt").write_text(text)
    code, printed, _ = highrank("evaluate", "tiny", "--text", tmp_path / "mine.txt")
    label = "Not in the vocabulary, read as <unk>"
    assert code == 0 and printed.startswith("tiny on text mine.txt, with the vocabulary of tale")
    assert f"{label}: {shown}" in printed if shown else label not in printed


def test_the_text_of_the_training_is_recognised_by_its_content(highrank, trained, tmp_path):
    text, other = (trained / "tale.txt").read_text(), tmp_path / "tale.txt"
    note = "is the text that tiny was trained on: most of it was read in training"
    (tmp_path / "copy.txt").write_text(text)
    given = ("--text", tmp_path / "copy.txt")
    _, printed, _ = highrank("evaluate", "tiny", *given)
    assert f"copy.txt {note}" in printed and "highrank evaluate tiny --split test" in printed
    for runs in (["tiny"], ["tiny", "tiny"]):
        _, printed, errors = highrank("evaluate", *runs, *given, "--json")
        assert json.loads(printed) and errors.count(f"copy.txt {note}") == len(runs)
    other.write_text(text + "\nthe cat slept\n")
    code, printed, errors = highrank("evaluate", "tiny", "--text", other)
    assert code == 0 and "trained on" not in printed + errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dynamic.lr", "1"], "--dynamic.… must go with --dynamic"),
        (["--cache.window", "9"], "--cache.… must go with --cache"),
        (["--search"], "--search must go with --dynamic, --cache or --all"),
        (["--all", "--cache"], "--all must come without --dynamic and --cache: it has both"),
        (["--all", "--batch-size", "2"], "--batch-size must go with static evaluation"),
        (["--all", "--text", "tale.txt", "--per-token", "o.csv"], "--per-token must go with --te"),
        (["--dynamic", "--batch-size", "4"], "--batch-size must go with static evaluation"),
        (["--dynamic", "--baselines"], "--baselines must go with static evaluation or --all"),
        (["--cache", "--compat", "mos"], "--compat must go with static evaluation"),
        (["--batch-size", "0"], "batch-size must be at least 1, got 0"),
        (["--dynamic", "--dynamic.lr", "1", "2"], "lr must be one value without a search, got 2"),
        (["--per-token", "out.csv"], "--per-token must go with --text"),
        (["--text", "foreign.txt"], "the text foreign.txt must have a token of the run's vocab"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(arguments, message, highrank, trained):
    (trained / "foreign.txt").write_text("Nihil novi sub sole\n")
    before = sorted(trained.rglob("*"))
    code, printed, errors = highrank("evaluate", "tiny", *arguments)
    assert code == 2 and printed == ""
    last = errors.splitlines()[-1]
    assert last.startswith(f"highrank: {message}") and "Traceback" not in errors
    assert sorted(trained.rglob("*")) == before


def test_the_options_have_the_defaults_of_the_settings():
    assert DynamicOptions().segment == DynamicSettings().segment
    assert get_args(DynamicOptions.__annotations__["convention"]) == tuple(CONVENTIONS)
