"""The budget, divided; and a plan that comes back from its file."""

import json
from dataclasses import replace

import pytest

from highrank.studies.compare.plan import NUM_POINTS, divided, read_plan, write_plan
from highrank.studies.compare.speed import Speed


def speeds(*prices):
    return tuple(
        Speed(cpu=price, wall=2 * price, valid=0.1, test=0.2, analysis=1.0) for price in prices
    )


def test_equal_tokens_share_the_time_by_their_price(make_plan):
    plan = replace(make_plan("mos"), speeds=speeds(1e-4, 3e-4))
    found = divided(plan, 100.0, 10)
    assert found.cpu_seconds is None
    assert found.seconds == pytest.approx(100.0, rel=1e-3)
    assert found.cpu_of(1) == pytest.approx(3 * found.cpu_of(0))
    fixed = NUM_POINTS * 0.1 + 0.3 + 1.0
    assert found.seconds_of(0) == pytest.approx(found.num_tokens * 2e-4 + fixed)
    twice = divided(replace(plan, jobs=2), 100.0, 10)
    assert twice.num_tokens > 2 * found.num_tokens


def test_equal_time_is_the_same_for_all_and_the_slowest_reaches_equal_tokens(make_plan):
    plan = replace(make_plan("mos"), speeds=speeds(1e-4, 3e-4), equal=("time", "tokens"))
    found = divided(plan, 100.0, 10)
    assert found.regimes == ("tokens", "time")
    assert found.cpu_of(0) == found.cpu_of(1) == found.cpu_seconds
    assert found.seconds == pytest.approx(100.0, rel=1e-3)
    assert 0.8 * found.cpu_seconds < found.num_tokens * 3e-4 < found.cpu_seconds


def test_a_budget_that_is_too_small_names_what_to_drop(make_plan):
    plan = replace(make_plan("mos", "moc", "moc:5"), speeds=speeds(1e-4, 9e-2, 2e-4, 1e-4))
    with pytest.raises(
        ValueError, match=r"at least [\d.]+m for 4 variants of 2 seeds, got 1\."
    ) as no:
        divided(plan, 90.0, 5_000)
    assert "or drop MoS, K = 3; or take fewer --seeds" in str(no.value)
    with pytest.raises(ValueError, match="or take fewer --seeds, or smaller --hidden-sizes"):
        divided(plan, 1.0, 5_000)


def test_a_plan_comes_back_from_its_file(make_plan, folder):
    plan = make_plan("mos", "adaptive-mos:2,start_noise=0.2", cpu_seconds=3.0)
    write_plan(plan, folder)
    assert read_plan(folder) == plan


@pytest.mark.parametrize("change", [{"version": 9}, {"seeds": "all"}, {"variants": [{}]}])
def test_a_file_that_is_no_plan_is_refused(make_plan, folder, change):
    write_plan(make_plan("mos"), folder)
    path = folder / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"plan.json must be the plan of a comparison: "):
        read_plan(folder)
    with pytest.raises(ValueError, match="must be a folder that `highrank compare` made"):
        read_plan(folder / "none")
