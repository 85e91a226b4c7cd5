import io

import pytest
from rich.console import Console

from highrank.report.formats import duration, nats
from highrank.studies.demo.table import demo_table, ordered_fits


def printed(result, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(demo_table(result))
    return console.file.getvalue()


def test_all_fits_are_readable_in_80_columns(result):
    lines = printed(result).splitlines()
    rows = [line for line in lines if "Softmax" in line or "MoC" in line or "MoS" in line]
    assert len(rows) == sum(len(language.fits) for language in result.languages)
    assert "…" not in "".join(lines)


def test_each_language_is_named_once_above_its_group(result):
    text = printed(result)
    assert text.count("factorised") == text.count("senses") == 1
    assert text.index("factorised") < text.index("senses")


def test_units_method_and_seed_are_named(result):
    text = " ".join(printed(result).split())
    for words in ("nats per token", "no sampling", "numerical rank", "Seed 3", "81 s"):
        assert words in text


def test_a_bound_that_is_not_known_is_a_dash(result):
    mos = next(line for line in printed(result).splitlines() if "MoS" in line)
    assert mos.split()[-1] == "–"


def test_a_matched_softmax_follows_the_mixtures_that_it_matches(result):
    fits = ordered_fits(result.languages[0])[:4]
    assert [fit.head for fit in fits] == ["softmax", "moc", "mos", "softmax"]
    assert fits[3].matches == fits[2].context_size
    assert fits[3].num_parameters == fits[2].num_parameters


@pytest.mark.parametrize(
    "value, text", [(0.0, "0"), (0.398, "0.3980"), (0.00641, "0.0064"), (3.14e-7, "3.1e-7")]
)
def test_an_excess_is_short_and_never_rounded_to_nothing(value, text):
    assert nats(value) == text


@pytest.mark.parametrize("seconds, text", [(81.4, "81 s"), (119.9, "2 min 0 s")])
def test_a_duration_is_in_seconds_or_minutes(seconds, text):
    assert duration(seconds) == text
