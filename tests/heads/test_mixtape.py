"""Mixtape: Google's numbers, the formula by brute force, and its rank."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from highrank.heads import Mixtape
from highrank.ops.gate_tree import mix_leaves, mix_products
from highrank.ops.streamed_cross_entropy import logits_of

D, E, V, R = 6, 4, 11, 5


def mixtape(num_components=4, frequent=R, **options):
    fraction = frequent / V
    return Mixtape(D, V, num_components, E, frequent_fraction=fraction, gate_size=3, **options)


def tree_weights(gate):
    """π (..., K) of gates (..., K-1), leaf by leaf down from the root."""
    found = []
    for leaf in range(gate.shape[-1] + 1):
        node, weight = leaf + gate.shape[-1], 1.0
        while node:
            parent, is_first = (node - 1) // 2, node % 2 == 1
            weight = weight * (gate[..., parent] if is_first else 1 - gate[..., parent])
            node = parent
        found.append(weight)
    return torch.stack(found, -1)


def slow_log_prob(head, hidden):
    """The formula of the docstring, one token of the vocabulary at a time."""
    K = head.num_components
    context = torch.tanh(head.latent(hidden)).view(len(hidden), K, E)
    gate = torch.tanh(head.gate(hidden)).view(len(hidden), K - 1, -1)
    share = head.shared_gate(hidden)
    logits = torch.empty(len(hidden), V).double()
    for place, token in enumerate(head.order.tolist()):
        opened = share
        if place < head.num_frequent:
            opened = gate @ head.gate_embedding[place] + share + head.gate_bias[place]
        weight = tree_weights(opened.sigmoid())  # (N, K)
        logits[:, token] = (weight * (context @ head.weight[token])).sum(-1) + head.bias[token]
    return logits.log_softmax(-1)


def test_logits_are_those_of_googles_unit_test():
    """mixtape in mesh_tensorflow/transformer/vocab_embeddings_test.py."""
    head = Mixtape(2, 5, 4, 2, frequent_fraction=0.4, gate_size=1, bias=False).double()
    one, gates = torch.eye(2), torch.tensor([[1.0, 0], [0, 1], [1, 1]])
    first, second = torch.diag(torch.tensor([1.0, 0])), torch.diag(torch.tensor([0, 1.0]))
    with torch.no_grad():
        head.weight.copy_(torch.arange(10.0).view(5, 2))
        head.latent.weight.copy_(torch.cat((one, one.flip(0), first, second)))
        head.gate.weight.copy_(gates)
        head.shared_gate.weight.copy_(gates)
        head.gate_embedding.fill_(1.0)
        head.gate_bias.copy_(torch.tensor([[1.0, 2, 3], [3, 4, 5]]))
        head.latent.bias.zero_()
        head.gate.bias.zero_()
    _, *features = head.features(torch.tensor([[1.0, 2.0]]).double())
    want = torch.tensor([0.905462, 4.390559, 6.575162, 9.513036, 12.450909]).double()
    logits = logits_of(head.logits(), features)[0, 0]
    # Google computed in float32.
    torch.testing.assert_close(logits, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_components", [2, 4, 8])
@pytest.mark.parametrize("counts", [None, [3, 9, 0, 4, 4, 7, 1, 8, 2, 6, 5]])
def test_it_is_the_formula_in_values_and_gradients(hidden, generic, num_components, counts):
    head = generic(mixtape(num_components, token_counts=counts))
    got, want = head.log_prob(hidden), slow_log_prob(head, hidden)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    upstream = torch.randn_like(got)
    got, want = (
        torch.autograd.grad((upstream * x).sum(), list(head.parameters())) for x in (got, want)
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_the_most_frequent_tokens_have_the_gates():
    head = mixtape(token_counts=[3, 9, 0, 4, 4, 7, 1, 8, 2, 6, 5])
    assert head.order[:R].tolist() == [1, 7, 5, 9, 10]
    assert mixtape().order.tolist() == list(range(V))


@pytest.mark.parametrize("frequent", [0, R, V])
def test_the_rank_is_the_bound(generic, frequent):
    head = generic(Mixtape(16, 40, 4, E, frequent_fraction=frequent / V, gate_size=3))
    rank = torch.linalg.matrix_rank(head.log_prob(torch.randn(60, 16).double()))
    assert rank == min(40, head.num_frequent + E + 2) == min(40, head.rank_bound)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_components": 3}, "num_components must be a power of two from 2 on, got 3"),
        ({"num_components": 1}, "num_components must be a power of two from 2 on, got 1"),
        ({"frequent": 2 * V}, "frequent_fraction must be from 0 to 1, got 2.0"),
        ({"token_counts": [1, 2]}, "token_counts must have 11 numbers, got 2"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        mixtape(**options)


def products(num_leaves, gate_scale=1.0):
    """Contexts (5, K, 6), vectors (3, 6), gates' features (5, K-1, 2) and vectors (3, 2)."""
    shapes = (5, num_leaves, 6), (3, 6), (5, num_leaves - 1, 2), (3, 2)
    *rest, gate_weight = (torch.randn(shape).double() for shape in shapes)
    return [x.requires_grad_() for x in (*rest, gate_scale * gate_weight)]


def definition(context, weight, gate, gate_weight):
    return mix_leaves(F.linear(context, weight), F.linear(gate, gate_weight).sigmoid())


@pytest.mark.parametrize("num_leaves", [2, 4, 8])
def test_the_fast_path_is_the_definition_in_values_and_gradients(num_leaves):
    given = products(num_leaves)
    got, want = mix_products(*given), definition(*given)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    upstream = torch.randn_like(got)
    got, want = (torch.autograd.grad((upstream * x).sum(), given) for x in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert gradcheck(mix_products, given)


def test_what_was_returned_stays_and_a_second_backward_pass_gives_the_same():
    given = products(4)
    got = mix_products(*given)
    before = got.detach().clone()
    first, second = (torch.autograd.grad(got.sum(), given, retain_graph=True) for _ in range(2))
    assert torch.equal(got, before)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_four_leaves_have_the_papers_weights():
    gate = torch.rand(5, 3, 1).double()
    first, second, third = gate.unbind(1)
    want = (first * second, first * (1 - second), (1 - first) * third, (1 - first) * (1 - third))
    leaves = torch.eye(4).double().expand(5, 4, 4)
    torch.testing.assert_close(mix_leaves(leaves, gate), torch.cat(want, -1))


def test_equal_leaves_stay_as_they_are():
    context, weight, gate, gate_weight = products(4, gate_scale=10.0)
    context = context[:, :1].expand(5, 4, 6)
    got = mix_products(context, weight, gate, gate_weight)
    torch.testing.assert_close(got, context[:, 0] @ weight.T)
