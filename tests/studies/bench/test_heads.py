"""The output layers against one softmax: what is measured, and what is multiplied."""

import pytest

from highrank.heads import HEADS
from highrank.studies.bench import heads
from highrank.studies.bench.heads import CONTROL, count_flops, pass_of, run_head_bench
from highrank.studies.bench.page import head_picture
from highrank.studies.bench.table import head_table


@pytest.mark.parametrize("kind", [CONTROL, *HEADS])
def test_every_head_can_be_measured(kind):
    assert 0 < pass_of(kind, 8, 60)() < 20


def test_what_is_multiplied_grows_with_the_components():
    one, four = (count_flops(name, 16, 4_000) for name in (CONTROL, "mos"))
    assert four / one == pytest.approx(4, rel=0.05)


def test_a_run_has_a_row_for_each_head_and_size(monkeypatch, tmp_path):
    monkeypatch.setattr(heads, "SIZES", ((8, 100),))
    result = run_head_bench(("mos", "pointer"), rounds=1, quick=True)
    (size,) = result.sizes
    assert [m.name for m in size.measurements] == [CONTROL, "mos", "pointer"]
    assert size.flop_ratios[CONTROL] == 1
    assert head_table(result).row_count == 3
    head_picture(result, tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match="heads must be among softmax, .*, got mosaic"):
        run_head_bench(("mosaic",))
