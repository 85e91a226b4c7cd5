"""Tables of evaluations: our rows, the papers' rows, and what a search tried."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from highrank.environment import environment
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.method import Dataset
from highrank.evaluation.result import Result
from highrank.evaluation.search import Search, Trial, cache_grid
from highrank.presets import PUBLISHED
from highrank.report.evaluation import method_text, results_table, search_table, unknown_text

RESULT = Result(
    value=58.34,
    unit="perplexity per word",
    nats=4.06629,
    bits=5.8664,
    bits_per_byte=1.2345,
    bits_per_char=1.3456,
    num_tokens=73_750,
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


def test_our_rows_stand_above_the_paper_s_of_the_same_method_and_split():
    text = printed(results_table([RESULT], PUBLISHED["ptb-mos"]))
    for part in ("runs/ptb-mos-1 on penn-treebank", "58.34", "4.0663", "73,750", "bits/byte"):
        assert part in text
    assert text.index("58.34") < text.index("58.08") < text.index("56.54")
    assert "finetuned" in text and "55.97" not in text and "48.33" not in text


def test_without_published_numbers_there_are_only_ours():
    assert "Yang" not in printed(results_table([replace(RESULT, split="mine.txt")]))
    own = replace(RESULT, split="mine.txt")
    assert "Yang" not in printed(results_table([own], PUBLISHED["ptb-mos"]))


def test_a_text_of_the_user_s_is_not_called_the_corpus():
    text = " ".join(printed(results_table([replace(RESULT, split="text mine.txt")])).split())
    title = "runs/ptb-mos-1 on text mine.txt, with the vocabulary of penn-treebank"
    assert text.startswith(title) and "on penn-treebank" not in text


def test_bits_per_byte_and_character_stand_beside_the_perplexity():
    text = " ".join(printed(results_table([RESULT])).split())
    for part in ("bits/byte", "1.2345", "bits/char", "1.3456", "58.34", "they are lower bounds"):
        assert part in text
    spelled = replace(RESULT, unknown={"tokens": 0, "distinct": 0})
    assert "lower bounds" not in " ".join(printed(results_table([spelled])).split())


def test_of_several_methods_the_settings_stand_below_the_rows():
    cache = {"batch_size": 1, "cache": {"window": 500, "theta": 1.0, "weight": 0.1}}
    other = replace(RESULT, method="cache", settings=cache)
    text = printed(results_table([RESULT, other]))
    assert [line.split()[:2] for line in text.splitlines()[4:6]] == [
        ["static", "valid"],
        ["cache", "valid"],
    ]
    assert "cache: window 500, theta 1, weight 0.1.\n" in re.sub(" +\n", "\n", text)
    assert "compare with" not in text


def test_settings_that_differ_between_splits_are_told_apart():
    test = replace(RESULT, split="test", settings={"batch_size": 1, "compat": None})
    lines = [line.rstrip() for line in printed(results_table([RESULT, test])).splitlines()]
    assert "valid: static, batch size 10." in lines and "test: static, batch size 1." in lines
    same = printed(results_table([RESULT, replace(RESULT, split="test")]))
    assert "\nstatic, batch size 10. " in same and same.count("batch size") == 1


def test_every_row_has_one_line():
    own = replace(RESULT, split="text a-long-name.txt", bits_per_byte=1.2, bits_per_char=1.3)
    lines = printed(results_table([own])).splitlines()
    at = next(i for i, line in enumerate(lines) if "──" in line)
    row, below = lines[at + 1 : at + 3]
    assert row.split() == ["static", "text", "58.34", "4.0663", "1.2000", "1.3000", "73,750"]
    assert not below.strip()


def test_names_of_files_cannot_move_the_cursor():
    assert "\x1b" not in printed(results_table([replace(RESULT, split="text \x1b[2J.txt")]))


def test_characters_are_called_characters():
    text = printed(results_table([replace(RESULT, unit="perplexity per character")]))
    assert "per character" in text


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, "static, batch size 10"),
        (
            {"settings": {"batch_size": 1, "compat": "mos"}},
            "static, batch size 1, divided as mos does",
        ),
        (
            {
                "method": "dynamic+cache",
                "settings": {
                    "batch_size": 1,
                    "dynamic": {"lr": 5e-5, "epsilon": 2e-5, "decay": 0.002},
                    "cache": {"window": 500, "theta": 1.0, "weight": 0.1},
                },
            },
            "dynamic: lr 5e-05, epsilon 2e-05, decay 0.002; cache: window 500, theta 1, weight 0.1",
        ),
        (
            {
                "method": "cache",
                "settings": {"cache": {"window": 500, "theta": 1.0, "weight": 0.0}},
            },
            "cache: weight 0",
        ),
    ],
)
def test_the_method_has_its_settings(changes, want):
    assert method_text(replace(RESULT, **changes)) == want


def test_a_search_is_sorted_and_says_when_the_best_is_at_the_edge():
    settings = [DynamicSettings(lr=lr) for lr in (1e-5, 2.5e-5, 3e-5)]
    losses = (4.2, float("inf"), 4.1)
    trials = tuple(Trial(settings=s, nats=n) for s, n in zip(settings, losses, strict=True))
    text = printed(search_table("dynamic", Search(trials=trials, num_tokens=1234)))
    assert text.index("3e-05") < text.index("1e-05") < text.index("2.5e-05")
    assert "60.34" in text and "1,234" in text and "> 1e6" in text
    assert "The best lr is the highest" in " ".join(text.split())


def test_no_cache_is_one_row_without_a_window():
    settings = cache_grid(window=(100, 500), theta=(0.1, 0.3), weight=(0.0, 0.2))
    trials = tuple(Trial(settings=s, nats=4.0 + n) for n, s in enumerate(settings))
    text = printed(search_table("cache", Search(trials=trials, num_tokens=9)))
    rows = [line.split() for line in text.splitlines() if re.search(r"\d\.\d\d$", line.rstrip())]
    assert rows[0] == ["–", "–", "0", "54.60"] and len(rows) == 5
    assert {row[0] for row in rows[1:]} == {"100", "500"} and "that was tried" not in text


def test_a_long_search_shows_the_best():
    settings = [DynamicSettings(lr=n * 1e-6) for n in range(30)]
    trials = tuple(Trial(settings=s, nats=abs(n - 15)) for n, s in enumerate(settings))
    text = printed(search_table("dynamic", Search(trials=trials, num_tokens=9)))
    assert "18 more" in text and "1.5e-05" in text and "lowest" not in text


def test_dynamic_evaluation_is_compared_with_one_stream():
    settings = {"dynamic": {"lr": 5e-5, "epsilon": 2e-5, "decay": 0.002}}
    text = printed(results_table([replace(RESULT, method="dynamic", settings=settings)]))
    assert "compare with static --batch-size 1" in " ".join(text.split())


def test_unknown_tokens_are_listed_most_frequent_first():
    unknown = Counter({"newt": 2, **{f"word{n}": 1 for n in range(10)}})
    found = Dataset(
        name="text x",
        tokens=np.zeros(31),
        sha256="",
        num_bytes=1,
        num_chars=1,
        lines=[],
        unknown=unknown,
    )
    text = unknown_text(found, "perplexity per word")
    assert text.startswith("Not in the vocabulary, read as <unk>: 12 of 30 tokens; 11 distinct wo")
    assert "words: newt, word0" in text and text.endswith("word8, …")
    one = replace(found, unknown=Counter("é"))
    assert unknown_text(one, "perplexity per character").endswith("1 distinct character: é")
    assert unknown_text(replace(found, unknown=Counter()), "perplexity per word") == ""
