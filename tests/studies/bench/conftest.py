"""Benchmarks in tests: no collection of garbage between times, and no compiler."""

import pytest

from highrank.studies.bench import baselines, harness


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Collecting what all tests have left behind takes seconds, compiling even more."""
    monkeypatch.setattr(harness.gc, "collect", lambda: 0)
    monkeypatch.setattr(baselines.shutil, "which", lambda name: None)
