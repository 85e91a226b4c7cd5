"""The output layers against one softmax: what is measured, and what is multiplied."""

import pytest

from highrank.heads import COMPOSED, HEADS
from highrank.studies.bench import harness, heads
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.heads import CONTROL, count_flops, prepare_pass, run_head_bench


@pytest.mark.parametrize("kind", [CONTROL, *HEADS, *COMPOSED])
def test_every_head_can_be_measured(kind):
    assert 0 < prepare_pass(kind, 8, 60)() < 20


def test_what_is_multiplied_grows_with_the_components():
    one, four = (count_flops(name, 16, 4_000) for name in (CONTROL, "mos"))
    assert four / one == pytest.approx(4, rel=0.05)


def test_a_run_has_a_row_for_each_head_and_size(monkeypatch):
    monkeypatch.setattr(heads, "SIZES", ((8, 100), (8, 200)))
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(2**20))
    groups = run_head_bench(("mos", "mos+pointer"), rounds=1).groups
    assert [group.name for group in groups] == ["E = 8, V = 100", "E = 8, V = 200"]
    for group in groups:
        assert [m.name for m in group.measurements] == [CONTROL, "mos", "mos+pointer"]
        assert group.numbers["multiplies"][CONTROL] == 1 < group.numbers["multiplies"]["mos"]
    assert len(run_head_bench(("mos",), quick=True).groups) == 1


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match="head.kind must be one of softmax, .*, got 'mosaic'"):
        run_head_bench(("mosaic",))
