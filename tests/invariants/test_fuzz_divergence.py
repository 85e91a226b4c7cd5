"""A small share of the random cases of `fuzz_divergence.py`."""

import fuzz_divergence
import pytest


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_divergences_of_random_heads_are_those_of_tables(start, monkeypatch):
    monkeypatch.setattr(fuzz_divergence.sides, "BLOCK_NUMBERS", 2**17)
    for number in range(start, start + 20):
        drawn, error = fuzz_divergence.case(number)
        assert error <= fuzz_divergence.TOLERANCE, (number, drawn)
