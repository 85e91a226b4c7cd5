"""Multi-facet softmax: the formula, its start as one softmax, and its block of earlier states."""

import pytest
import torch
import torch.nn.functional as F

from highrank.heads import MultiFacetSoftmax, PartitionedSoftmax, Softmax

D, E, V = 6, 4, 11


def mfs(**options):
    return MultiFacetSoftmax(D, V, 3, E, **options)


def slow_log_prob(head, hidden, block):
    """The formula of the docstring, of which the block is given."""
    q = torch.cat((hidden[..., -head.last_size :], F.gelu(head.block(block))), -1)
    facet = head.latent(q).unflatten(-1, (-1, E))
    P, total = head.num_partitions, 0.0
    for k, weight in enumerate(head.prior(q).softmax(-1).unbind(-1)):
        facets = [facet[..., v % P if k == 0 else P + k - 1, :] for v in range(V)]
        logits = torch.stack([f @ head.weight[v] for v, f in enumerate(facets)], -1) + head.bias
        total = total + weight[..., None] * logits.softmax(-1)
    return total.log()


def test_it_is_the_formula_in_values_and_gradients(hidden, generic):
    head = generic(mfs(layers=(-2, -1), layer_sizes=(2, 4), num_partitions=2))
    got, want = head.log_prob(hidden), slow_log_prob(head, hidden, hidden)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    upstream = torch.randn_like(got)
    got, want = (
        torch.autograd.grad((upstream * x).sum(), list(head.parameters())) for x in (got, want)
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_it_starts_as_one_softmax_of_the_hidden_state(generic):
    hidden, softmax = torch.randn(7, E).double(), generic(Softmax(E, V))
    head = MultiFacetSoftmax(E, V, 3, E).double()
    head.load_state_dict(softmax.state_dict(), strict=False)
    got = head.log_prob(hidden)
    torch.testing.assert_close(got, softmax.log_prob(hidden), rtol=0, atol=1e-2)
    with torch.no_grad():
        head.latent.weight.copy_(head.latent.weight.round())
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden), rtol=0, atol=1e-10)


def test_one_component_is_a_partitioned_softmax_with_linear_facets(hidden, generic):
    head = generic(MultiFacetSoftmax(D, V, 1, E, num_partitions=3))
    q = torch.cat((hidden, F.gelu(head.block(hidden))), -1)
    other = PartitionedSoftmax(2 * D, V, E, num_partitions=3, activation="identity").double()
    state = head.state_dict()
    other.load_state_dict({name: state[name] for name in other.state_dict()})
    torch.testing.assert_close(head.log_prob(hidden), other.log_prob(q), rtol=0, atol=1e-10)
    assert head.rank_bound == other.rank_bound


def test_the_block_has_earlier_positions_with_zeros_before_the_first(generic):
    head = generic(mfs(num_previous=2))
    hidden, state = torch.randn(5, 3, D).double(), head.initial_state(3)
    shifted = [torch.cat((torch.zeros(n, 3, D).double(), hidden[: 5 - n])) for n in range(3)]
    got = head.log_prob(hidden, tokens=None, state=state)
    want = slow_log_prob(head, hidden, torch.cat(shifted, -1))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert torch.equal(head.advance(hidden, None, state), hidden[-2:])
    with pytest.raises(ValueError, match=r"hidden must be \(T, B, D\) with .*, got \(3, 6\)"):
        head.log_prob(hidden[0])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": (-2,)}, r"layers must end with -1, the last one, got \(-2,\)"),
        ({"layers": (-2, -1)}, "layer_sizes must be 2 numbers that add up to .*, got None"),
        ({"num_previous": -1}, "num_previous must be at least 0, got -1"),
        ({"num_partitions": 0}, "num_partitions must be at least 1, got 0"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        mfs(**options)
