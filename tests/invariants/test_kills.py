"""Killed at random moments by SIGKILL, SIGTERM, SIGINT and SIGHUP, and resumed: the same bits."""

import kills
import pytest


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kills.session, "SECONDS_BETWEEN_CHECKPOINTS", 0.02)
        yield kills.Killer(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_is_killed_and_resumed_is_the_run_that_was_not(seed, killer):
    _, _, problem = killer.case(f"fast {seed}")
    assert problem is None
