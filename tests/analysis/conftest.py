"""How tests of unargmaxable tokens ask for verdicts."""

import pytest

from highrank.analysis.unargmaxable import Verdict, decide_tokens


@pytest.fixture(scope="session")
def verdicts():
    """The verdict of each token, in the order of the vocabulary."""

    def read(*args):
        return [token.verdict.value for token in decide_tokens(*args)]

    return read


@pytest.fixture(scope="session")
def argmaxable():
    """The set of argmaxable tokens, where every token must be decided."""

    def read(*args):
        found = decide_tokens(*args)
        assert all(token.verdict is not Verdict.UNDECIDED for token in found)
        return {token.token for token in found if token.verdict is Verdict.ARGMAXABLE}

    return read
