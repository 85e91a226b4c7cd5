"""One process or all of a run killed at random moments, and resumed by as many or by others."""

import pytest
import worker_kills


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_kills.session, "SECONDS_BETWEEN_CHECKPOINTS", 0.02)
        patch.setattr(worker_kills.tiny, "CONFIGS", dict(worker_kills.tiny.CONFIGS))
        yield worker_kills.Killer(tmp_path_factory.mktemp("kills"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_run_of_several_processes_survives_kills(seed, killer):
    _, _, problems = killer.case(f"fast {seed}")
    assert problems == []
