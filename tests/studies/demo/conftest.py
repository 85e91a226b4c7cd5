"""The stored result of a demo, and the same with other numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from highrank.files import from_json, read_json
from highrank.studies.demo.measure import DemoResult

STORED = Path(__file__).parents[3] / "results" / "demo" / "2026-11-16.json"


@pytest.fixture(scope="session")
def result():
    found = read_json(STORED)
    for language in found["languages"]:
        # As it was called then.
        language["example_tokens"] = language.pop("example_words")
    return from_json(DemoResult, found)


@pytest.fixture(scope="session")
def result_with(result):
    """`result_with("senses", mos=0.0)` is `result` with that excess for MoS at every d."""

    def make(name, **values):
        def change(fit):
            head = fit.head if fit.matches is None else "matched"
            return replace(fit, excess=values.get(head, fit.excess))

        languages = tuple(
            replace(one, fits=tuple(map(change, one.fits))) if one.name == name else one
            for one in result.languages
        )
        return replace(result, languages=languages)

    return make
