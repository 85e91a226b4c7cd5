"""Without time no verdict is given, and no other one than with time."""

import itertools
import math

import pytest
import torch

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable import result as module
from highrank.analysis.unargmaxable.problem import build_problem
from highrank.analysis.unargmaxable.program import decide_word, solve
from highrank.analysis.unargmaxable.result import Deadline, OutOfTime, Verdict
from highrank.analysis.unargmaxable.states import Everywhere


def head(vocab_size=40, size=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(vocab_size, size, generator=generator, dtype=torch.float64)


@pytest.fixture
def ticks(monkeypatch):
    """A clock that is a second later whenever somebody looks at it."""
    monkeypatch.setattr(module, "monotonic", itertools.count().__next__)


def test_without_a_limit_no_word_is_untried():
    patient, free = decide_words(head(), seconds=1e6), decide_words(head())
    assert free.num_untried == patient.num_untried == 0
    assert [w.verdict for w in free.words] == [w.verdict for w in patient.words]
    assert free.counts[Verdict.UNDECIDED] == 0


def test_without_time_every_word_is_undecided():
    found = decide_words(head(), seconds=0)
    assert found.counts[Verdict.UNDECIDED] == found.num_untried == 40
    assert all(word.certificate is None and word.is_untried for word in found.words)
    assert found.num_searched + found.num_inside + found.num_programmes == 0


def test_what_takes_no_time_is_decided_without_it():
    weight = torch.tensor([[0.0], [1.0], [1.0], [2.0]])
    found = decide_words(weight, torch.tensor([0.0, 0.0, 1.0, -math.inf]), seconds=0)
    assert [word.verdict.value for word in found.words] == [
        "undecided",
        "unreachable",
        "undecided",
        "unreachable",
    ]
    assert [word.is_untried for word in found.words] == [True, False, True, False]
    assert decide_words(torch.ones(1, 2), seconds=0).counts[Verdict.REACHABLE] == 1


def test_whenever_time_ends_verdicts_are_those_of_unlimited_time(ticks, monkeypatch):
    # Several looks in each sweep, several blocks of words that move.
    monkeypatch.setattr("highrank.analysis.unargmaxable.problem.BLOCK", 40 * 10)
    monkeypatch.setattr("highrank.analysis.unargmaxable.search.NUM_MOVING", 10)
    want = [word.verdict for word in decide_words(head()).words]
    untried = []
    for seconds in (1, 3, 8, 50, 130, 150, 400):
        found = decide_words(head(), seconds=seconds)
        for word, verdict in zip(found.words, want, strict=True):
            assert word.is_untried == (word.verdict is Verdict.UNDECIDED)
            assert word.is_untried or word.verdict is verdict
        untried.append(found.num_untried)
    assert untried == sorted(untried, reverse=True)
    assert untried[0] > 20 and len(set(untried)) > 4 and untried[-1] == 0


def test_a_programme_ends_in_time(ticks):
    weight = head()
    problem = build_problem(weight, weight.new_zeros(40), Everywhere())
    rivals = torch.arange(1, 3)
    with pytest.raises(OutOfTime):
        solve(problem, 0, rivals, [], seconds=0.0)
    assert solve(problem, 0, rivals, [], seconds=math.inf) is not None
    with pytest.raises(OutOfTime):
        decide_word(problem, 0, rivals, 1e-10, Deadline(2))
    assert decide_word(problem, 0, rivals, 1e-10, Deadline(100)) is not None


def test_the_solver_itself_ends_in_time():
    # Without a limit it takes half a second.
    weight = head(2000, 60)
    problem = build_problem(weight, weight.new_zeros(2000), Everywhere())
    with pytest.raises(OutOfTime):
        solve(problem, 0, torch.arange(1, 2000), [], seconds=1e-3)


def test_a_word_too_close_to_call_is_not_untried_though_time_ends_with_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def too_close(*_args):
        now[0] = 2.0

    monkeypatch.setattr("highrank.analysis.unargmaxable.decide_word", too_close)
    found = decide_words(head(), seconds=1)
    undecided = found.having(Verdict.UNDECIDED)
    assert found.num_programmes == 1 and found.num_untried == len(undecided) - 1 > 1


def test_progress_says_that_the_time_is_up():
    shown = []
    decide_words(head(), seconds=0, on_progress=lambda *both: shown.append(both))
    assert shown[-1] == (1.0, "time is up: 40 words are open")


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_times_that_cannot_be_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds must be at least 0, got"):
        decide_words(head(), seconds=seconds)
