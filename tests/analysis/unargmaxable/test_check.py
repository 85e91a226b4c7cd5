"""What is no certificate does not pass as one."""

import math

import pytest
import torch

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable.problem import is_exact, lead_bound, margins
from highrank.analysis.unargmaxable.result import Proof
from highrank.analysis.unargmaxable.states import Ball, Box, Everywhere


def gaussian(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_a_proof_that_rounding_spoils_says_so():
    corners = gaussian(3, 5)
    weight = torch.cat([corners, corners.mean(dim=0, keepdim=True)])
    proof = decide_words(weight).words[3].certificate
    assert isinstance(proof, Proof) and not proof.is_exact
    assert 0 < proof.lead < 1e-14


def test_a_proof_with_the_wrong_weights_is_refused():
    weight = torch.cat([gaussian(3, 2), torch.zeros(1, 2)]).double()
    bias, words = torch.zeros(4).double(), torch.arange(3)
    wrong = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert lead_bound(weight, bias, Everywhere(), 3, words, wrong) > 0.1
    assert lead_bound(weight, bias, Ball(2.0), 3, words, wrong) > 0.2
    assert not is_exact(weight, bias, 3, words, wrong)


def test_a_mean_of_vectors_proves_nothing_for_a_word_with_a_larger_bias():
    weight = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    words, right = torch.arange(3), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for lift in (0.0, -1.0, 1.0):
        bias = torch.tensor([0.0, 0.0, 0.0, lift], dtype=torch.float64)
        assert is_exact(weight, bias, 3, words, right) == (lift <= 0)
        lead = lead_bound(weight, bias, Everywhere(), 3, words, right)
        assert lead == pytest.approx(max(lift, 0.0), abs=1e-14)


def test_the_bound_of_a_proof_in_a_box_is_attained_at_a_corner():
    weight, bias, words = gaussian(6, 3), gaussian(6, seed=1), torch.arange(1, 6)
    low, high = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-0.5, 2.0, 3.0])
    corners = torch.cartesian_prod(*torch.stack([low, high], dim=1)).double()
    shares = gaussian(5, seed=2).softmax(0)
    logits = corners @ weight.T + bias  # (8, 6)
    want = (logits[:, 0] - logits[:, 1:] @ shares).max().item()
    assert lead_bound(weight, bias, Box(low, high), 0, words, shares) == pytest.approx(want)


def test_a_state_outside_the_set_is_refused():
    weight, bias = torch.eye(2).double(), torch.zeros(2).double()
    words, hidden = torch.tensor([0]), torch.tensor([[1.0, 0.0]]).double() * 1.1
    assert margins(weight, bias, Everywhere(), words, hidden).item() == pytest.approx(1.1)
    for states in (Box(-1, 1), Ball(1.0)):
        assert margins(weight, bias, states, words, hidden).item() == -math.inf


def test_a_lead_within_rounding_errors_is_no_certificate():
    weight = torch.tensor([[1.0], [1.0 - 2**-53]], dtype=torch.float64)
    margin = margins(weight, torch.zeros(2).double(), Everywhere(), torch.tensor([0]), weight[:1])
    assert margin.item() < 0
