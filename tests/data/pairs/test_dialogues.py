"""Dialogues in their three forms, and the pairs that they leak."""

import json
import os
from pathlib import Path

import pytest

from highrank.data.pairs.dialogues import dialogue_pairs, read_dialogues
from highrank.data.pairs.leaks import folded, is_seen
from highrank.data.pairs.reading import Pair

DIALOGUES = [["Hello .", "Hi , you !", "Bye ."], ["What ?", "Nothing ."]]


def test_all_forms_hold_the_same_dialogues(tmp_path):
    plain = "\n\n\n".join("\n".join(dialogue) for dialogue in DIALOGUES)
    daily = "\n".join(" __eou__ ".join([*dialogue, ""]) for dialogue in DIALOGUES)
    rows = [{"utts": [["A", text, ["act"]] for text in dialogue]} for dialogue in DIALOGUES]
    for name, text in (
        ("plain.txt", plain),
        ("daily.txt", daily),
        ("switchboard.jsonl", "\n".join(map(json.dumps, rows))),
    ):
        (tmp_path / name).write_text(text)
        assert read_dialogues(tmp_path / name) == DIALOGUES
    (tmp_path / "wrong.jsonl").write_text('{"utts": ["text"]}')
    with pytest.raises(ValueError, match="line 1: must have"):
        read_dialogues(tmp_path / "wrong.jsonl")


def test_a_response_follows_the_last_utterances():
    assert dialogue_pairs(DIALOGUES, 2) == [
        Pair("Hello .", "Hi , you !"),
        Pair("Hello .\nHi , you !", "Bye ."),
        Pair("What ?", "Nothing ."),
    ]
    assert dialogue_pairs(DIALOGUES)[1].source == "Hi , you !"
    with pytest.raises(ValueError, match="context must be at least 1, got 0"):
        dialogue_pairs(DIALOGUES, 0)


def test_a_pair_is_seen_if_both_sides_stand_in_train():
    train = [Pair("Hello  there", "Hi")]
    held_out = [Pair("hello there", "HI"), Pair("hello there", "no"), Pair("Hi", "Hello there")]
    assert is_seen(held_out, train) == [True, False, False]


@pytest.mark.skipif("HIGHRANK_TEST_DATA" not in os.environ, reason="needs the corpus")
def test_dailydialog_leaks_a_fifth_of_its_test_pairs():
    folder = Path(os.environ["HIGHRANK_TEST_DATA"]) / "dailydialog"
    train, test = (read_dialogues(folder / f"dialogues_{name}.txt") for name in ("train", "test"))
    known = {folded("|".join(dialogue)) for dialogue in train}
    assert sum(folded("|".join(dialogue)) in known for dialogue in test) == 106
    seen = is_seen(dialogue_pairs(test), dialogue_pairs(train))
    assert (sum(seen), len(seen)) == (1_395, 6_740)
    assert round(100 * sum(seen) / len(seen), 1) == 20.7
