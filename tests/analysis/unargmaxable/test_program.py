"""Linear programs, and whatever else takes long, end in time without another verdict."""

import itertools
import math

import pytest
import torch

from highrank.analysis.unargmaxable import Verdict, decide_tokens
from highrank.analysis.unargmaxable import problem as module
from highrank.analysis.unargmaxable.problem import Deadline, Everywhere, OutOfTime, build_problem
from highrank.analysis.unargmaxable.program import decide_token, solve


def head(vocab_size=40, size=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(vocab_size, size, generator=generator, dtype=torch.float64)


@pytest.fixture
def ticks(monkeypatch):
    """A clock that is a second later whenever somebody looks at it."""
    monkeypatch.setattr(module, "monotonic", itertools.count().__next__)


def undecided(found):
    return [token for token in found if token.verdict is Verdict.UNDECIDED]


def untried(found):
    return [token for token in found if token.is_untried]


def test_without_a_limit_no_token_is_untried():
    patient, free = decide_tokens(head(), seconds=1e6), decide_tokens(head())
    assert untried(free) == untried(patient) == undecided(free) == []
    assert [t.verdict for t in free] == [t.verdict for t in patient]


def test_without_time_every_token_is_undecided():
    found = decide_tokens(head(), seconds=0)
    assert len(undecided(found)) == len(untried(found)) == 40
    assert all(token.certificate is None for token in found)


def test_what_takes_no_time_is_decided_without_it():
    weight = torch.tensor([[0.0], [1.0], [1.0], [2.0]])
    found = decide_tokens(weight, torch.tensor([0.0, 0.0, 1.0, -math.inf]), seconds=0)
    want = ["undecided", "unargmaxable", "undecided", "unargmaxable"]
    assert [token.verdict.value for token in found] == want
    assert [token.is_untried for token in found] == [True, False, True, False]
    (single,) = decide_tokens(torch.ones(1, 2), seconds=0)
    assert single.verdict is Verdict.ARGMAXABLE


def test_whenever_time_ends_verdicts_are_those_of_unlimited_time(ticks, monkeypatch):
    # Several looks in each sweep, several blocks of tokens that move.
    monkeypatch.setattr(module, "BLOCK", 40 * 10)
    monkeypatch.setattr("highrank.analysis.unargmaxable.search.NUM_MOVING", 10)
    want = [token.verdict for token in decide_tokens(head())]
    counts = []
    for seconds in (1, 3, 8, 50, 130, 150, 400):
        found = decide_tokens(head(), seconds=seconds)
        for token, verdict in zip(found, want, strict=True):
            assert token.is_untried == (token.verdict is Verdict.UNDECIDED)
            assert token.is_untried or token.verdict is verdict
        counts.append(len(untried(found)))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 20 and len(set(counts)) > 4 and counts[-1] == 0


def test_a_program_ends_in_time(ticks):
    weight = head()
    problem = build_problem(weight, weight.new_zeros(40), Everywhere())
    rivals = torch.arange(1, 3)
    with pytest.raises(OutOfTime):
        solve(problem, 0, rivals, seconds=0.0)
    assert solve(problem, 0, rivals, seconds=math.inf) is not None
    with pytest.raises(OutOfTime):
        decide_token(problem, 0, rivals, Deadline(2))
    assert decide_token(problem, 0, rivals, Deadline(100)) is not None


def test_the_solver_itself_ends_in_time():
    # Without a limit it takes half a second.
    weight = head(2000, 60)
    problem = build_problem(weight, weight.new_zeros(2000), Everywhere())
    with pytest.raises(OutOfTime):
        solve(problem, 0, torch.arange(1, 2000), seconds=1e-3)


def test_a_token_too_close_to_call_is_not_untried_though_time_ends_with_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def too_close(*_args):
        now[0] = 2.0

    monkeypatch.setattr("highrank.analysis.unargmaxable.decide_token", too_close)
    found = decide_tokens(head(), seconds=1)
    assert len(untried(found)) == len(undecided(found)) - 1 > 1


def test_progress_says_that_the_time_is_up():
    shown = []
    decide_tokens(head(), seconds=0, on_progress=lambda *both: shown.append(both))
    assert shown[-1] == (1.0, "time is up: 40 tokens are open")


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_times_that_cannot_be_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds must be at least 0, got"):
        decide_tokens(head(), seconds=seconds)
