"""Heads and losses as they were recorded, within rounding, and the comparison of records."""

from pathlib import Path

import golden
import golden_cases
import numpy as np
import pytest
import torch

from highrank.heads import head_class
from highrank.signatures import arguments_of

# The same for all heads; `hidden_norm` only says where a pointer's weights start.
GIVEN = {"hidden_size", "vocab_size", "batch_first", "device", "dtype", "hidden_norm"}


@pytest.mark.parametrize("prefix", ["heads", "losses/float64"])
def test_values_are_as_recorded(prefix):
    _, old = golden.read(Path(__file__).with_name("golden.json"), [prefix])
    new = golden.compute([prefix])
    classes = {key: golden.classify(old.get(key), new.get(key)) for key in {**old, **new}}
    accepted = (golden.EQUAL, golden.CLOSE)
    assert len(old) > 200
    assert {key: kind for key, kind in classes.items() if kind not in accepted} == {}


@pytest.mark.parametrize("kind", golden_cases.HEAD_CASES)
def test_heads_are_recorded_with_all_of_their_arguments(kind):
    known = set(arguments_of(head_class(kind))) - GIVEN
    assert known <= {name for case in golden_cases.HEAD_CASES[kind].values() for name in case}


def test_a_record_tells_equal_from_close_from_different():
    numbers = torch.linspace(-1, 2, 7, dtype=torch.float64)
    old = golden.record(numbers, "float64")
    assert golden.classify(old, golden.record(numbers.clone(), "float64")) == golden.EQUAL
    for change, want in ((1e-12, golden.CLOSE), (1e-7, golden.DIFFERENT)):
        assert golden.classify(old, golden.record(numbers + change, "float64")) == want
    swapped = golden.record(numbers[[1, 0, *range(2, 7)]], "float64")
    assert golden.classify(old, swapped) == golden.DIFFERENT
    infinite = golden.record(numbers.masked_fill(numbers == 0, np.inf), "float64")
    assert golden.classify(old, infinite) == golden.DIFFERENT
    assert golden.classify(old, None) == golden.MISSING
    assert golden.classify(None, old) == golden.NEW
    assert golden.classify(old, golden.record("text", "float64")) == golden.DIFFERENT


@pytest.mark.parametrize("is_brief", [False, True])
def test_records_are_read_as_they_were_written(tmp_path, is_brief):
    values = {"a/b/c/d": [0.1, None, 2], "a/b": "text", "b/c/d": 3, "a/b/c/e": torch.ones(2)}
    new = {key: golden.record(value, "float32") for key, value in values.items()}
    path = tmp_path / "values.json"
    golden.write(path, {key: golden.brief(x) for key, x in new.items()} if is_brief else new)
    _, old = golden.read(path)
    kinds = {golden.classify(old[key], new[key]) for key in new}
    assert kinds == ({golden.EQUAL, golden.CLOSE} if is_brief else {golden.EQUAL})
    assert set(golden.read(path, ["a/b/c"])[1]) == {"a/b/c/d", "a/b/c/e"}


def test_an_error_is_a_difference(capsys):
    def failing():
        yield "first", 1.0
        raise ValueError("no")

    found = dict(golden.guarded(failing()))
    assert found == {"first": 1.0, "failed": "ValueError: no"}
    old, new = ({"x/failed": golden.record(text, "float64")} for text in ("a", "b"))
    assert golden.compare(old, new) == {golden.DIFFERENT: 1}
    assert "different: x/failed: a -> b" in capsys.readouterr().out
