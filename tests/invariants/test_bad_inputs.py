"""Bad inputs for every command: refused in a sentence, or done."""

import bad_inputs
import pytest

NUM_CASES = 6


@pytest.fixture(scope="module")
def thrower(tmp_path_factory):
    return bad_inputs.Thrower(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_a_bad_input_is_a_sentence_or_does_no_harm(seed, thrower):
    _, _, problem = thrower.case(f"fast {seed}")
    assert problem is None
