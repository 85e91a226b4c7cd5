"""Partitioned softmax: the formula, Mixtape with closed gates, and its rank."""

import pytest
import torch

from highrank.heads import Mixtape, PartitionedSoftmax

D, E, V = 6, 4, 11


def partition(num_partitions=3, **options):
    return PartitionedSoftmax(D, V, E, num_partitions=num_partitions, **options)


@pytest.mark.parametrize("activation", ["tanh", "identity"])
@pytest.mark.parametrize("num_partitions", [1, 2, 3, 20])
def test_it_is_the_formula_in_values_and_gradients(hidden, generic, activation, num_partitions):
    head = generic(partition(num_partitions, activation=activation))
    facet = head.latent(hidden).view(7, num_partitions, E)
    facet = facet.tanh() if activation == "tanh" else facet
    columns = [facet[:, v % num_partitions] @ head.weight[v] + head.bias[v] for v in range(V)]
    got, want = head.log_prob(hidden), torch.stack(columns, -1).log_softmax(-1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    upstream = torch.randn_like(got)
    got, want = (
        torch.autograd.grad((upstream * x).sum(), list(head.parameters())) for x in (got, want)
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_mixtape_with_saturated_gates_is_a_partition(hidden, generic):
    """Token v reads context v mod 4."""
    head = generic(partition(4))
    mixtape = generic(Mixtape(D, V, 4, E, frequent_fraction=1.0, gate_size=3))
    with torch.no_grad():
        for name in ("weight", "bias", "latent.weight", "latent.bias"):
            mixtape.get_parameter(name).copy_(head.get_parameter(name))
        tokens = torch.arange(V)
        # The root takes contexts 0 and 1 or 2 and 3, the others the first of their two or not.
        is_first = torch.stack((tokens % 4 < 2, tokens % 2 == 0, tokens % 2 == 0), -1)
        mixtape.gate_bias.copy_(torch.where(is_first, 1e4, -1e4))
    torch.testing.assert_close(mixtape.log_prob(hidden), head.log_prob(hidden), rtol=0, atol=1e-10)


def test_blocks_may_be_renamed(hidden, generic):
    """Tokens and facets in another order: the same probabilities in that order."""
    head = generic(PartitionedSoftmax(D, 12, E, num_partitions=3))
    other = PartitionedSoftmax(D, 12, E, num_partitions=3).double()
    # Token v of the one is token v + 1 mod 12 of the other, so block i is block i + 1 mod 3.
    state = head.state_dict()
    other.load_state_dict(
        {
            name: value.roll(E if name.startswith("latent") else 1, 0)
            for name, value in state.items()
        }
    )
    got = other.log_prob(hidden).roll(-1, -1)
    torch.testing.assert_close(got, head.log_prob(hidden), rtol=0, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "size, activation, want", [(16, "tanh", 12), (16, "identity", 12), (6, "identity", 6)]
)
def test_the_rank_is_the_bound(generic, bias, size, activation, want):
    head = PartitionedSoftmax(size, 60, E, num_partitions=3, activation=activation, bias=bias)
    rank = torch.linalg.matrix_rank(generic(head).log_prob(torch.randn(70, size).double()))
    # Linear facets of a small state have a bias of their own.
    assert rank == head.rank_bound == want + (2 if bias or want == size else 1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_partitions": 0}, "num_partitions must be at least 1, got 0"),
        ({"activation": "relu"}, r"activation must be one of \['tanh', 'identity'\], got 'relu'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        partition(**options)
