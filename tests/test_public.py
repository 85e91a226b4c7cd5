"""The names that users see, and what it costs to import them."""

import subprocess
import sys

import pytest

import highrank

HEAVY = {"matplotlib", "transformers", "starlette", "uvicorn", "scipy", "rich", "tyro", "jinja2"}


def test_there_are_at_most_fifteen_public_names_and_all_exist():
    assert len(highrank.__all__) <= 15
    assert len(set(highrank.__all__)) == len(highrank.__all__)
    assert all(hasattr(highrank, name) for name in highrank.__all__)


@pytest.mark.parametrize("name", ["Softmax", "MixtureOfContexts", "MixtureOfSoftmaxes"])
def test_the_heads_and_the_loss_are_public(name):
    assert name in highrank.__all__ and "mixture_cross_entropy" in highrank.__all__
    assert getattr(highrank, name).__module__.startswith("highrank.heads.")


def imported_by(statement):
    """The packages that a fresh interpreter has loaded after the statement, and what it printed."""
    code = f"{statement}\nimport sys\nprint('|'.join(m for m in sys.modules if '.' not in m))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    *printed, packages = result.stdout.splitlines()
    return set(packages.split("|")), printed, result.stderr


def test_importing_the_package_is_silent_and_loads_nothing_heavy():
    packages, printed, errors = imported_by("import highrank")
    assert "highrank" in packages
    assert packages.isdisjoint(HEAVY | {"torch", "numpy"})
    assert not printed and not errors


def test_the_public_names_load_torch_and_nothing_heavier():
    packages, printed, errors = imported_by("from highrank import *")
    assert "torch" in packages
    assert packages.isdisjoint(HEAVY), packages.intersection(HEAVY)
    assert not printed and not errors


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'highrank' has no attribute 'Hardmax'"):
        _ = highrank.Hardmax
    assert set(highrank.__all__) <= set(dir(highrank))
