"""The search, which needs no linear program: long vectors lead, means of others never do."""

import numpy as np
import torch

from highrank.analysis.unargmaxable import decide_tokens
from highrank.analysis.unargmaxable import program as program_module
from highrank.analysis.unargmaxable.certificate import Proof
from highrank.analysis.unargmaxable.problem import Everywhere, build_problem
from highrank.analysis.unargmaxable.search import search_states

CORNERS = torch.tensor([[0.0, 4.0], [4.0, -4.0], [-4.0, -4.0]], dtype=torch.float64)


def problem_of(weight):
    return build_problem(weight, weight.new_zeros(len(weight)), Everywhere())


def test_the_longest_vector_is_found_at_the_first_look(monkeypatch):
    monkeypatch.setattr("highrank.analysis.unargmaxable.search.NUM_SWEEPS", 1)
    for seed in range(5):
        weight = torch.from_numpy(np.random.default_rng(seed).standard_normal((200, 3)))
        longest = (weight - weight.mean(0)).norm(dim=1).argmax()
        found = search_states(problem_of(weight))
        assert found.margin[longest] > 0
        assert (weight @ found.hidden[longest]).argmax() == longest


def test_vectors_of_one_length_need_no_program(monkeypatch):
    monkeypatch.setattr(program_module, "solve", None)
    angle = torch.arange(50, dtype=torch.float64)
    found = decide_tokens(torch.stack([angle.cos(), angle.sin()], dim=1))
    assert [token.verdict.value for token in found] == ["argmaxable"] * 50


def test_tokens_inside_a_simplex_are_exact_means_of_its_corners():
    inner = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, size=(20, 2)))
    weight = torch.cat([CORNERS, inner])
    assert (search_states(problem_of(weight)).margin > 0).tolist() == [True] * 3 + [False] * 20
    for token in decide_tokens(weight)[3:]:
        proof = token.certificate
        assert isinstance(proof, Proof) and proof.is_exact
        mean = proof.weights @ weight[proof.tokens]
        torch.testing.assert_close(mean, weight[token.token], rtol=0, atol=1e-14)
