import io
from dataclasses import replace

import pytest
from rich.console import Console

from highrank.environment import Environment
from highrank.studies.bench.harness import Measurement, with_ratios
from highrank.studies.bench.spectrum import FULL, WAYS, AuditBenchResult, SpectrumError
from highrank.studies.bench.table import bench_audit_table

SECONDS = (1200.0, 1310.0, 298.0, 4.81, 22.1)
PEAKS = (None, 1700, 1650, 210, 96)
ERRORS = {
    "svd": SpectrumError(absolute=0.0, relative=0.0, floor=1.9e-14),
    "stable": SpectrumError(absolute=3.1e-15, relative=4.2e-10, floor=1.9e-14),
    "fast": SpectrumError(absolute=2.6e-10, relative=0.031, floor=2.1e-6),
    "linear": SpectrumError(absolute=4.4e-16, relative=7.7e-13, floor=3.0e-15),
}


def measurement(name, seconds, peak):
    return Measurement(
        name=name,
        note="its memory is not measured" if peak is None else "",
        value=1.0,
        times=(seconds,),
        best=seconds,
        peak_bytes=None if peak is None else peak * 2**20,
        time_ratios={},
        memory_ratios={},
        failure=None,
    )


@pytest.fixture
def result():
    measurements = [measurement(*row) for row in zip(WAYS, SECONDS, PEAKS, strict=True)]
    where = Environment(
        highrank="0.1.0",
        commit="0123456789ab",
        torch="2.13.0",
        python="3.11.7",
        threads=2,
        cpu="A fast one",
        platform="Linux",
        date="2026-11-16 03:16",
    )
    return AuditBenchResult(
        size=FULL,
        rounds=1,
        elapsed=3021.0,
        environment=where,
        measurements=with_ratios(measurements, ("svd",)),
        errors=ERRORS,
    )


def printed(result):
    console = Console(width=80, file=io.StringIO())
    console.print(bench_audit_table(result))
    return console.file.getvalue()


def row(result, name):
    lines = [line.split() for line in printed(result).splitlines()]
    return next(cells for cells in lines if cells[:1] == [name] and len(cells) == 7)


def test_each_contestant_has_time_memory_and_errors_in_80_columns(result):
    assert " ".join(row(result, "stable")) == "stable 1,310 1.09 1,700 3e-15 4e-10 2e-14"
    assert " ".join(row(result, "fast")) == "fast 298 0.25 1,650 3e-10 3e-02 2e-06"
    assert row(result, "linear")[2] == "0.004"
    text = printed(result)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_what_was_not_measured_is_a_dash(result):
    assert row(result, "svd")[3] == "–"
    assert row(result, "log-probabilities")[4:] == ["–", "–", "–"]
    failed = replace(result.measurements[1], best=None, time_ratios={}, failure="out of memory")
    without = replace(result, measurements=(result.measurements[0], failed))
    assert row(without, "stable")[1:3] == ["–", "–"]
    assert "stable: out of memory." in printed(without)


def test_size_rounds_notes_and_machine_are_named(result):
    text = " ".join(printed(result).split())
    for words in (
        "20,000 contexts × 10,000 words",
        "Seconds: once",
        "svd: its memory is not measured.",
        "1,500 contexts × 1,000 words",
        "0123456789ab",
        "50 min 21 s",
    ):
        assert words in text
    assert "best of 3 alternating rounds" in " ".join(printed(replace(result, rounds=3)).split())
