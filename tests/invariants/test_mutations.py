"""Damaged files of runs and corpora: refused in one sentence, or read without harm."""

import os

import mutations
import pytest

NUM_GROUPS, GROUP = 6, 25


@pytest.fixture(scope="module")
def mutator(tmp_path_factory):
    before = os.environ.get("HIGHRANK_CACHE")
    yield mutations.Mutator(tmp_path_factory.mktemp("mutations"))
    if before is None:
        del os.environ["HIGHRANK_CACHE"]
    else:
        os.environ["HIGHRANK_CACHE"] = before


@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_damage_is_a_sentence_or_does_no_harm(group, mutator):
    for case in range(GROUP):
        _, problems = mutator.case(f"fast {group} {case}")
        assert not problems
