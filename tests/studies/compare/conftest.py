"""A tiny language, a plan on it that trains in a second, and runs that never were."""

import gc
from dataclasses import replace

import pytest

from highrank.config import BatchConfig
from highrank.data import senses
from highrank.studies.compare import source
from highrank.studies.compare.plan import Plan, write_plan
from highrank.studies.compare.presets import Comparison, base_config
from highrank.studies.compare.record import Mark, Point, RunRecord
from highrank.studies.compare.speed import Speed
from highrank.studies.compare.variant import make_variants

V = 20


@pytest.fixture
def tiny(monkeypatch):
    """The name of an exact language of 20 tokens."""
    make = {"tiny": lambda: senses(vocab_size=V, num_contexts=16, num_senses=6, seed=1)}
    monkeypatch.setattr(source, "LANGUAGES", make)
    monkeypatch.setattr("highrank.studies.compare.presets.LANGUAGES", make)
    monkeypatch.setattr(source, "SIZES", {"train": 2_000, "valid": 300, "test": 300})
    source.open_source.cache_clear()
    yield "tiny"
    source.open_source.cache_clear()


@pytest.fixture
def base():
    """What every variant begins with."""
    config = base_config(Comparison(corpus="senses", hidden_sizes=(24, 16)), 1_000)
    return replace(config, batch=BatchConfig(batch_size=4, bptt=8, bptt_std=0.0))


@pytest.fixture
def variants(base):
    def make(*specs, components=(3,), sizes=(4,), is_equal=True):
        counts = [V - token for token in range(V)]
        return make_variants(base, specs, components, sizes, V, counts, is_equal=is_equal)

    return make


@pytest.fixture
def make_plan(variants, tiny):
    def make(*specs, **values):
        # So small a network has steps of more than 1 %.
        found = variants(*specs, is_equal=False)
        speed = Speed(cpu=1e-4, wall=1.2e-4, valid=0.01, test=0.01, analysis=0.1)
        plan = Plan(
            corpus=tiny,
            max_tokens=None,
            variants=found,
            speeds=(speed,) * len(found),
            seeds=(0, 1),
            equal=("parameters", "context", "tokens"),
            num_tokens=1_200,
            cpu_seconds=None,
            cache=False,
            test_batch_size=2,
            jobs=1,
            threads=1,
        )
        return replace(plan, **values)

    return make


@pytest.fixture
def folder(tmp_path):
    """Where a comparison goes; runs are let go of at the end."""
    yield tmp_path
    gc.collect()


@pytest.fixture
def written(make_plan, folder):
    """A plan in its folder."""

    def make(*specs, **values):
        plan = make_plan(*specs, **values)
        write_plan(plan, folder)
        return plan

    return make


def mark(loss, *, tokens=1_200, cpu_seconds=1.0):
    return Mark(
        step=30,
        tokens=tokens,
        cpu_seconds=cpu_seconds,
        seconds=cpu_seconds,
        valid_loss=loss,
        test_loss=loss + 0.1,
        train_loss=loss - 0.2,
    )


def record(variant, seed, loss, *, cpu_seconds=1.0, **values):
    """A finished run whose loss falls as a power of the tokens."""
    curve = tuple(
        Point(
            tokens=tokens,
            cpu_seconds=cpu_seconds * tokens / 1_200,
            train_loss=loss,
            valid_loss=loss * (tokens / 1_200) ** -0.1,
        )
        for tokens in (150, 300, 600, 1_200)
    )
    known = {
        "variant": variant,
        "seed": seed,
        "state": "finished",
        "note": "",
        "curve": curve,
        "marks": {"tokens": mark(loss, cpu_seconds=cpu_seconds)},
        "cache": {},
        "tokens": 1_200,
        "cpu_seconds": cpu_seconds,
        "seconds": cpu_seconds,
        "speed_change": 1.05,
        "is_disturbed": False,
        "analysis": {"effective_rank_1e-3": 5, "specialisation": None},
    }
    return RunRecord(**(known | values))


@pytest.fixture
def make_records():
    """Runs of each variant of a plan: losses by seed."""

    def make(plan, *losses, cpu_seconds=None):
        times = cpu_seconds or [1.0] * len(losses)
        return tuple(
            record(variant.name, seed, loss, cpu_seconds=time)
            for variant, some, time in zip(plan.variants, losses, times, strict=True)
            for seed, loss in enumerate(some)
        )

    return make
