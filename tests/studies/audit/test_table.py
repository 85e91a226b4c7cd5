"""What an audit prints, and its picture."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from highrank.analysis.rank import MEASURES
from highrank.studies.audit.page import audit_picture
from highrank.studies.audit.table import audit_table, power, short_names


def printed(result, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(audit_table(result))
    return console.file.getvalue().replace("\u00a0", " ")


@pytest.mark.parametrize("count", [1, 5])
def test_the_terminal_shows_every_model_in_80_columns(count, make):
    models = [replace(make.mos(), name=f"some/where/model-{n}-{'x' * 40}{n}") for n in range(count)]
    text = printed(make.result(make.softmax(), *models))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("797") == count and text.count("4.763 ± 0.012") == count + 1
    assert "softmax-0" in text and "predicts little" in " ".join(text.split())


def test_the_picture_is_1200_pixels_wide(result, tmp_path):
    path = tmp_path / "audit.png"
    audit_picture(result, path)
    header = path.read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 675)


def test_a_result_with_holes_can_be_shown(make, tmp_path):
    result = make.with_holes()
    assert "1.000" in printed(result)
    audit_picture(result, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").exists()


def test_names_are_no_markup(make):
    assert "[b]x" in printed(make.result(replace(make.softmax(), name="[b]x")))


def test_tokens_for_which_there_was_no_time_are_undecided(make):
    assert ["undecided", "703"] in [line.split() for line in printed(make.hasty()).splitlines()]


def test_every_measure_of_rank_has_a_row_and_a_definition(make):
    text = " ".join(printed(make.result(make.softmax())).split())
    for measure in MEASURES:
        assert f"{measure.label} ".replace("\u00a0", " ") in text
        assert measure.definition in text
    assert "stable rank 1.07" in text and "entropy rank 12.3" in text


def test_names_are_short_and_tell_models_apart():
    named = [SimpleNamespace(name=n) for n in ("a/x", "b/y/", "c/y", "c/y", "org/" + "long" * 20)]
    assert short_names([SimpleNamespace(name="runs/_old")]) == ("…/_old",)
    assert short_names(named) == ("x", "b/y/", "c/y", "c/y (2)", "longlonglongl…nglonglonglong")


@pytest.mark.parametrize("value, text", [(1e-3, "10⁻³"), (2.1e-12, "3·10⁻¹²"), (9.5e-4, "10⁻³")])
def test_small_numbers_are_powers_rounded_up(value, text):
    assert power(value) == text
