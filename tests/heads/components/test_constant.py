"""Constant components: word frequencies, learned topics, and what they do to the rank."""

import pytest
import torch
from torch import nn

from highrank.heads import Composed, Constant, MixtureOfSoftmaxes

COUNTS = [0, 5, 1, 0, 2, 9, 1, 1, 3, 7, 4]
D, V, E = 6, 11, 4


def compose(num_components=1, hidden_size=D, vocab_size=V, **options):
    softmaxes = MixtureOfSoftmaxes(hidden_size, vocab_size, num_components, E)
    return Composed(softmaxes, [Constant(hidden_size, vocab_size, **options)])


@pytest.fixture
def head(generic):
    return generic(compose(3, num_topics=2, token_counts=COUNTS))


def test_it_is_the_formula(head, hidden):
    counts = torch.tensor(COUNTS).double() + 1
    constants = [counts / counts.sum(), *head.components[0].topic.softmax(-1)]
    gate = nn.functional.pad(head.gate(hidden), (1, 0)).softmax(-1)
    prob = gate[:, :1] * head.base.log_prob(hidden).exp()
    for j, constant in enumerate(constants):
        prob = prob + gate[:, j + 1, None] * constant
    # Frequencies are kept in the precision that the head is made in.
    torch.testing.assert_close(head.log_prob(hidden).exp(), prob, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_a_topic_is_its_expected_counts_less_those_it_answers_for(
    head, hidden, target
):
    head(hidden, target, "sum").loss.backward()
    (constant,) = head.components
    log_q = constant.log_constants()[1:, target].T  # (N, J - 1)
    log_gate = head.log_gate(head.features(hidden))[:, 2:]
    log_p = head.log_prob(hidden)[torch.arange(7), target]
    responsibility = (log_gate + log_q - log_p[:, None]).exp()
    taken = torch.zeros(2, V).double().index_add(1, target, responsibility.T)
    want = responsibility.sum(0)[:, None] * constant.topic.softmax(-1) - taken
    torch.testing.assert_close(constant.topic.grad, want, rtol=1e-10, atol=1e-10)


def test_constants_alone_have_as_many_ranks_as_there_are_of_them(generic):
    head = generic(compose(1, 16, 60, num_topics=2))
    hidden = torch.randn(70, 16).double()
    assert torch.linalg.matrix_rank(head.log_prob(hidden)) == 60
    nn.init.constant_(head.gate.bias, 1000.0)
    assert torch.linalg.matrix_rank(head.log_prob(hidden).exp()) == 3


def test_the_first_is_the_unigram_distribution_and_is_not_trained():
    head = compose(num_topics=0, token_counts=COUNTS)
    counts, (constant,) = torch.tensor(COUNTS) + 1, head.components
    torch.testing.assert_close(constant.log_constants()[0].exp(), counts / counts.sum())
    assert constant.topic.numel() == 0 and "log_frequency" in constant.state_dict()
    nn.init.constant_(head.gate.bias, 1000.0)
    want = (counts / counts.sum()).expand(4, V)
    torch.testing.assert_close(head.log_prob(torch.randn(4, D)).exp(), want)


def test_without_counts_all_tokens_are_alike_until_they_are_loaded():
    known, constant = Constant(D, V, token_counts=COUNTS), Constant(D, V)
    alike = torch.full((V,), 1 / V, dtype=torch.float64)
    torch.testing.assert_close(constant.log_constants()[0].exp(), alike)
    constant.load_state_dict(known.state_dict())
    assert torch.equal(constant.log_constants(), known.log_constants())


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="num_topics must be at least 0, got -1"):
        Constant(D, V, num_topics=-1)
    with pytest.raises(ValueError, match="token_counts must have 11 numbers, got 3"):
        Constant(D, V, token_counts=[1, 2, 3])


def test_everything_starts_near_the_unigram_distribution():
    """Or else the constants take all tokens, and the softmaxes learn nothing."""
    head, hidden = compose(3, token_counts=COUNTS), torch.randn(50, D)
    head.start_at_unigram(COUNTS)
    counts = torch.tensor(COUNTS) + 1
    found = head.base.log_prob(hidden).exp()
    assert (found - counts / counts.sum()).abs().max() < 0.05
    weight = head.log_gate(head.features(hidden)).exp()[:, 1:].sum(-1)
    torch.testing.assert_close(weight, torch.full((50,), 0.1))
