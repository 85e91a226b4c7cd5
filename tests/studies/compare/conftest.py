"""A tiny language, a plan on it that trains in a second, and runs that never were."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from highrank.config import BatchConfig
from highrank.data import senses
from highrank.studies.compare import presets
from highrank.studies.compare.plan import Plan, Speed, write_plan
from highrank.studies.compare.presets import Comparison, base_config
from highrank.studies.compare.record import Mark, Point, RunRecord, RunState
from highrank.studies.compare.variant import make_variants

V = 20


@pytest.fixture
def tiny(monkeypatch):
    """The name of an exact language of 20 tokens."""
    make = {"tiny": lambda: senses(vocab_size=V, num_contexts=16, num_senses=6, seed=1)}
    for module in ("presets", "recommendation"):
        monkeypatch.setattr(f"highrank.studies.compare.{module}.LANGUAGES", make)
    monkeypatch.setattr(presets, "SIZES", {"train": 2_000, "valid": 300, "test": 300})
    presets.open_source.cache_clear()
    yield "tiny"
    presets.open_source.cache_clear()


@pytest.fixture
def base():
    """The configuration that every variant begins with."""
    config = base_config(Comparison(corpus="senses", hidden_sizes=(24, 16)), 1_000)
    return replace(config, batch=BatchConfig(batch_size=4, options={"bptt": 8, "bptt_std": 0.0}))


@pytest.fixture
def variants(base):
    # So small a network has steps of more than 1 %.
    def make(*specs, components=(3,), sizes=(4,), vocab_size=V, **more):
        counts, more = list(range(vocab_size, 0, -1)), {"is_equal": False} | more
        return make_variants(base, specs, components, sizes, vocab_size, counts, **more)

    return make


@pytest.fixture
def make_plan(variants, tiny):
    def make(*specs, sizes=(4,), models=("awd-lstm",), **values):
        found = variants(*specs, sizes=sizes, models=models)
        speed = Speed(cpu=1e-4, wall=1.2e-4, alone=1e-4, valid=0.01, test=0.01, analysis=0.1)
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
        write_plan(plan := make_plan(*specs, **values), folder)
        return plan

    return make


def losses_around(level, variant=0):
    """Losses of four seeds: what they share, and each run's own noise."""
    noise = 0.002 * np.random.default_rng(variant).standard_normal(4)
    return (level + np.array([0.0, 0.02, -0.01, 0.005]) + noise - noise.mean()).tolist()


def record(variant, seed, loss, cpu_seconds):
    """A finished run whose loss falls as the tokens to the power of -0.1."""
    time = {"cpu_seconds": cpu_seconds, "seconds": cpu_seconds}
    valid = {"valid_loss": loss, "test_loss": loss + 0.1, "train_loss": loss - 0.2}
    curve = tuple(
        Point(
            tokens=tokens,
            cpu_seconds=cpu_seconds * tokens / 1_200,
            train_loss=loss,
            valid_loss=loss * (tokens / 1_200) ** -0.1,
        )
        for tokens in (150, 300, 600, 1_200)
    )
    return RunRecord(
        variant=variant,
        seed=seed,
        state=RunState.FINISHED,
        note="",
        curve=curve,
        marks={"tokens": Mark(step=30, tokens=1_200, **time, **valid)},
        methods={},
        tokens=1_200,
        **time,
        speed_change=1.05,
        is_disturbed=False,
        analysis={"effective_rank_1e-3": 5, "specialisation": None},
    )


@pytest.fixture
def losses():
    return losses_around


@pytest.fixture
def make_records():
    """Runs of each variant of a plan, with losses around their levels."""

    def make(plan, *levels, cpu_seconds=None):
        times = cpu_seconds or [1.0] * len(levels)
        rows = zip(plan.variants, levels, times, strict=True)
        return tuple(
            record(variant.name, seed, losses_around(level, index)[seed], time)
            for index, (variant, level, time) in enumerate(rows)
            for seed in plan.seeds
        )

    return make
