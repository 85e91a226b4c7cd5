"""Tables of evaluations: our rows, the papers' rows, and what a search tried."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from highrank.environment import environment
from highrank.evaluation.check import Finding
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.grids import cache_grid
from highrank.evaluation.result import Dataset, Result
from highrank.evaluation.search import Search, Trial
from highrank.presets import PUBLISHED
from highrank.report.tables import method_text, results_table, search_table, unknown_text

DYNAMIC = {"lr": 5e-5, "epsilon": 2e-5, "decay": 0.002}
CACHE = {"window": 500, "theta": 1.0, "weight": 0.1}
RESULT = Result(
    value=58.34,
    unit="perplexity per word",
    nats=4.06629,
    bits=5.8664,
    bits_per_byte=1.2345,
    bits_per_char=1.3456,
    num_tokens=73_750,
    unknown={"tokens": 3_688},
    split="valid",
    method="static",
    settings={"batch_size": 10, "compat": None},
    run="runs/ptb-mos-1",
    model_sha256="12",
    corpus="penn-treebank",
    data_sha256="34",
    seconds=1.5,
    environment=environment(),
)


def printed(table):
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_our_rows_and_the_paper_s_of_the_same_methods_and_splits_read_as_approved(approve):
    test = replace(RESULT, split="test", settings={"batch_size": 1, "compat": None})
    found = {"cache": {"split": "valid", "num_tokens": 2000, "trials": []}}
    settings = {"batch_size": 1, "cache": CACHE}
    cache = replace(RESULT, method="cache", nats=RESULT.nats - 0.1, settings=settings, search=found)
    text = approve("results.txt", results_table([RESULT, test, cache], PUBLISHED["ptb-mos"]))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_a_text_of_the_user_s_reads_as_approved(approve):
    """It is not called the corpus, spelled as a whole, and its name cannot move the cursor."""
    settings = {"dynamic": {**DYNAMIC, "rule": "sgd"}, "independent_lines": True}
    own = replace(
        RESULT,
        unit="perplexity per character",
        split="text a-long-name\x1b[2J.txt",
        method="dynamic",
        settings=settings,
        unknown={"tokens": 0, "distinct": 0},
    )
    approve("text.txt", results_table([own], PUBLISHED["ptb-mos"]))


def finding(name, passed=True):
    return Finding(name=name, passed=passed, found=0.0, limit=1e-4, sentence="")


def test_every_row_that_fails_its_check_is_named():
    fine = replace(RESULT, check=(finding("sum"), finding("causal")))
    learned = replace(
        RESULT,
        method="dynamic",
        settings={"dynamic": DYNAMIC},
        check=(finding("scored before learned"),),
    )
    text = " ".join(printed(results_table([RESULT, fine, learned])).split())
    assert "Checked (static, dynamic): probabilities sum to one and depend on no later" in text
    assert "what learns from the text scores it before" in text
    broken = replace(learned, split="test", check=(finding("target", False),))
    text = " ".join(printed(results_table([fine, learned, broken])).split())
    assert "dynamic on test FAILS target: these scores are not a distribution" in text
    assert "Checked" not in text


def test_settings_of_all_splits_are_named_once_and_one_stream_is_compared_with_one():
    settings = {"dynamic": DYNAMIC}
    both = [
        replace(RESULT, method="dynamic", settings=settings, split=s) for s in ("valid", "test")
    ]
    text = " ".join(printed(results_table(both)).split())
    assert text.count("lr 5e-05") == 1 and "compare with static --batch-size 1" in text


@pytest.mark.parametrize(
    ("method", "settings", "want"),
    [
        ("static", {"batch_size": 10, "compat": None}, "static, batch size 10"),
        (
            "static",
            {"batch_size": 1, "compat": "mos"},
            "static, batch size 1, divided as mos does",
        ),
        (
            "dynamic+cache",
            {"batch_size": 1, "dynamic": DYNAMIC, "cache": CACHE},
            "dynamic: lr 5e-05, epsilon 2e-05, decay 0.002; cache: window 500, theta 1, weight 0.1",
        ),
        ("cache", {"cache": {**CACHE, "weight": 0.0}}, "cache: weight 0"),
        ("dynamic", {"dynamic": {**DYNAMIC, "lr": 0.0}}, "dynamic: lr 0"),
        (
            "dynamic",
            {"dynamic": {**DYNAMIC, "rule": "sgd", "segment": 20, "adapt": ["head", "lstm"]}},
            "dynamic: lr 5e-05, decay 0.002, rule sgd, segment 20, adapt head lstm",
        ),
    ],
)
def test_the_method_has_its_settings(method, settings, want):
    assert method_text(replace(RESULT, method=method, settings=settings)) == want


def test_a_search_is_sorted_and_says_when_the_best_is_at_the_edge(approve):
    settings = [DynamicSettings(lr=lr) for lr in (1e-5, 2.5e-5, 3e-5)]
    losses = (4.2, float("inf"), 4.1)
    trials = tuple(Trial(settings=s, nats=n) for s, n in zip(settings, losses, strict=True))
    approve("search.txt", search_table("dynamic", Search(trials=trials, num_tokens=1234)))


def test_no_cache_is_one_row_without_a_window():
    settings = cache_grid(window=(100, 500), theta=(0.1, 0.3), weight=(0.0, 0.2))
    trials = tuple(Trial(settings=s, nats=4.0 + n) for n, s in enumerate(settings))
    text = printed(search_table("cache", Search(trials=trials, num_tokens=9)))
    rows = [line.split() for line in text.splitlines() if re.search(r"\d\.\d\d$", line.rstrip())]
    assert rows[0] == ["–", "–", "0", "54.60"] and len(rows) == 5
    assert {row[0] for row in rows[1:]} == {"100", "500"} and "that was tried" not in text


def test_unknown_tokens_are_listed_most_frequent_first():
    unknown = Counter({"newt": 2, **{f"word{n}": 1 for n in range(10)}})
    found = Dataset(
        name="text x", tokens=np.zeros(31), sha256="", num_bytes=1, num_chars=1, unknown=unknown
    )
    assert unknown_text(found, "perplexity per word") == (
        "Not in the vocabulary, read as <unk>: 12 of 30 tokens; 11 distinct words: newt, word0, "
        "word1, word2, word3, word4, word5, word6, word7, word8, …"
    )
    one = replace(found, unknown=Counter("é"))
    assert unknown_text(one, "perplexity per character").endswith("1 distinct character: é")
    assert unknown_text(replace(found, unknown=Counter()), "perplexity per word") == ""
