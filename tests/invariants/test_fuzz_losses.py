"""Some cases of the fuzz of losses: `fuzz_losses.py --cases 10000` is its long form."""

import pytest
from fuzz_losses import problem_of


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_random_losses_are_those_of_the_definition(first):
    problems = {number: problem_of(number) for number in range(first, first + 50)}
    assert {number: text for number, text in problems.items() if text} == {}
