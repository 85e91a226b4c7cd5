"""How tests of reachability ask for verdicts."""

import pytest

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable.result import Verdict


@pytest.fixture(scope="session")
def verdicts():
    """The verdict of each word, in the order of the vocabulary."""

    def read(*args):
        return [word.verdict.value for word in decide_words(*args).words]

    return read


@pytest.fixture(scope="session")
def reachable():
    """The set of reachable words, where every word must be decided."""

    def read(*args):
        found = decide_words(*args)
        assert not found.having(Verdict.UNDECIDED)
        return {word.word for word in found.having(Verdict.REACHABLE)}

    return read
