"""The table of docs/works-with.md is that of its command: two heads; slow: all heads."""

from pathlib import Path

import pytest
import works_with

from highrank.heads import COMPOSED, HEADS

DOCS = Path(__file__).parents[2] / "docs" / "works-with.md"
LINES = [line.strip("| ").split(" | ") for line in DOCS.read_text().splitlines() if " | " in line]
QUICK = ("mos", "mos+pointer")
OTHERS = [
    pytest.param(kind, marks=pytest.mark.slow) for kind in (*HEADS, *COMPOSED) if kind not in QUICK
]
ROWS = {row[0].strip("`"): row[1:] for row in LINES}


def test_the_table_has_all_heads_and_mechanisms():
    assert ROWS["head"] == list(works_with.MECHANISMS)
    assert {*HEADS, *COMPOSED} <= set(ROWS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*QUICK, *OTHERS])
def test_cells_are_what_is_found(kind):
    """But for mechanisms of several processes, and of packages that are not installed."""
    for name, cell in zip(ROWS["head"], ROWS[kind], strict=True):
        if name not in works_with.IN_PROCESSES:
            assert works_with.result(name, kind)[0] in (cell, works_with.MISSING), (name, kind)
