"""What is no certificate does not pass as one."""

import math

import pytest
import torch

from highrank.analysis.unargmaxable import decide_tokens
from highrank.analysis.unargmaxable.certificate import Proof, is_exact, lead_bound, margins
from highrank.analysis.unargmaxable.problem import Box, Everywhere, build_problem


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_proof_that_rounding_spoils_says_so():
    corners = gaussian(3, 5)
    weight = torch.cat([corners, corners.mean(dim=0, keepdim=True)])
    proof = decide_tokens(weight)[3].certificate
    assert isinstance(proof, Proof) and not proof.is_exact
    assert 0 < proof.lead < 1e-14


def test_a_proof_with_the_wrong_weights_is_refused():
    weight = torch.cat([gaussian(3, 2), torch.zeros(1, 2)]).double()
    bias, others = torch.zeros(4).double(), torch.arange(3)
    wrong = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    everywhere, box = (build_problem(weight, bias, s) for s in (Everywhere(), Box(2.0)))
    assert lead_bound(everywhere, 3, others, wrong) > 0.1
    assert lead_bound(box, 3, others, wrong) > 0.2
    assert not is_exact(everywhere, 3, others, wrong)


def test_a_mean_of_vectors_proves_nothing_for_a_token_with_a_larger_bias():
    weight = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    others, right = torch.arange(3), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for lift in (0.0, -1.0, 1.0):
        bias = torch.tensor([0.0, 0.0, 0.0, lift], dtype=torch.float64)
        problem = build_problem(weight, bias, Everywhere())
        assert is_exact(problem, 3, others, right) == (lift <= 0)
        lead = lead_bound(problem, 3, others, right)
        assert lead == pytest.approx(max(lift, 0.0), abs=1e-14)


def test_the_bound_of_a_proof_in_a_box_is_attained_at_a_corner():
    weight, bias, others = gaussian(6, 3), gaussian(6, seed=1), torch.arange(1, 6)
    corners = torch.cartesian_prod(*[torch.tensor([-2.5, 2.5], dtype=torch.float64)] * 3)
    weights = gaussian(5, seed=2).softmax(0)
    logits = corners @ weight.T + bias  # (8, 6)
    want = (logits[:, 0] - logits[:, 1:] @ weights).max().item()
    problem = build_problem(weight, bias, Box(2.5))
    assert lead_bound(problem, 0, others, weights) == pytest.approx(want)


def test_a_state_outside_the_set_is_refused():
    weight, bias = torch.eye(2).double(), torch.zeros(2).double()
    tokens, hidden = torch.tensor([0]), torch.tensor([[1.0, 0.0]]).double() * 1.1
    for states, want in ((Everywhere(), pytest.approx(1.1)), (Box(1.0), -math.inf)):
        assert margins(build_problem(weight, bias, states), tokens, hidden).item() == want


def test_a_lead_within_rounding_errors_is_no_certificate():
    weight = torch.tensor([[1.0], [1.0 - 2**-53]], dtype=torch.float64)
    problem = build_problem(weight, torch.zeros(2).double(), Everywhere())
    assert margins(problem, torch.tensor([0]), weight[:1]).item() < 0
