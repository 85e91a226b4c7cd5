"""Multi-sense softmax: a sum over senses, its start, and a rank beyond one softmax."""

import pytest
import torch
from torch import nn

from highrank.heads import MultiSenseSoftmax, Softmax

COUNTS = [0, 5, 1, 0, 2, 9, 1, 1, 3, 7, 4]
D, V, E = 6, 11, 4


def build(num_senses=3, **options):
    return MultiSenseSoftmax(
        D, V, E, num_senses=num_senses, num_frequent=4, token_counts=COUNTS, **options
    )


@pytest.fixture
def head(generic):
    return generic(build())


def reference(head, hidden):
    """p by a list of all vectors and the token of each, (N, V)."""
    context = head.latent(hidden).tanh()
    rows, owners = list(head.weight), list(range(V))
    biases = list(head.bias)
    for s in range(head.num_senses - 1):
        for r, token in enumerate(head.frequent.tolist()):
            rows.append(head.weight[token] + head.offset[s, r])
            biases.append(head.sense_bias[s, r])
            owners.append(token)
    prob = (context @ torch.stack(rows).T + torch.stack(biases)).softmax(-1)
    return prob @ nn.functional.one_hot(torch.tensor(owners), V).double()


def test_values_and_gradients_are_those_of_the_definition(head, hidden, target):
    hidden.requires_grad_()
    want = reference(head, hidden).log()
    torch.testing.assert_close(head.log_prob(hidden), want, rtol=1e-10, atol=1e-10)
    want = -want[torch.arange(7), target].mean()
    loss = head(hidden, target).loss
    torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
    leaves = [hidden, *head.parameters()]
    got, wanted = (torch.autograd.grad(x, leaves) for x in (loss, want))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_the_most_frequent_tokens_have_several_senses():
    assert build().frequent.tolist() == [1, 5, 9, 10]
    assert MultiSenseSoftmax(D, V, E, num_frequent=3).frequent.tolist() == [0, 1, 2]


def test_equal_senses_are_a_softmax_and_so_it_starts(hidden):
    head = build(sense_noise=0.0).double()
    plain = Softmax(D, V, E).double()
    plain.load_state_dict({name: head.state_dict()[name] for name in plain.state_dict()})
    nn.init.zeros_(plain.bias)
    torch.testing.assert_close(head.log_prob(hidden), plain.log_prob(hidden), rtol=1e-10, atol=1e-7)


def test_senses_keep_their_distances_to_an_embedding_that_is_tied(head, hidden):
    embedding = nn.Embedding(V, E).double()
    before = head.offset.detach().clone()
    head.tie(embedding.weight)
    assert head.weight is embedding.weight and torch.equal(head.offset, before)
    torch.testing.assert_close(head.log_prob(hidden), reference(head, hidden).log())


def test_the_rank_of_log_prob_exceeds_the_bound_of_one_softmax(generic):
    hidden = torch.randn(90, 16).double()
    for num_frequent, want in ((60, 60), (20, 20 + 4 + 2)):
        head = generic(MultiSenseSoftmax(16, 60, 4, num_senses=3, num_frequent=num_frequent))
        assert torch.linalg.matrix_rank(head.log_prob(hidden)) == want
        assert min(60, head.rank_bound) == want


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="token_counts must have 11 numbers, got 3"):
        MultiSenseSoftmax(D, V, E, token_counts=[1, 2, 3])
    with pytest.raises(ValueError, match="num_senses must be at least 1, got 0"):
        build(num_senses=0)
