"""The streamed loss: the definition in values and gradients, whatever makes the columns.

N tokens, K softmaxes, E embedding size, V vocabulary.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from highrank.ops.logit_map import Pieces
from highrank.ops.streamed_cross_entropy import (
    Block,
    Columns,
    Logits,
    logits_of,
    streamed_cross_entropy,
)

N, K, E, V, S = 9, 2, 4, 7, 2
# The first softmax has S columns of its own and two blocks of rows in turn, the second has one.
BLOCKS = [
    Block(0, slice(2, 5), slice(2, None, 2)),
    Block(0, slice(5, 7), slice(3, None, 2)),
    Block(1, slice(0, 7), slice(0, None)),
]


def columns_of(features, own_weight, shared):
    """Three contexts; the first columns are bent."""
    (context,), (layer,) = features, shared
    contexts = torch.tanh(context @ layer).unbind(1)
    return Columns(contexts, F.softplus(contexts[0] @ own_weight.T))


class Problem:
    """Tensors by name, and the loss of them."""

    def __init__(self, scale=1.0, bias=True, pieces=False):
        torch.manual_seed(0)

        def normal(*shape):
            return torch.randn(*shape).double().requires_grad_()

        self.tensors = {"log_weight": normal(N, K), "context": normal(N, 3, E)}
        self.tensors["weight"] = (scale * normal(V, E)).detach().requires_grad_()
        self.tensors |= {"bias": normal(V)} if bias else {}
        self.tensors |= {"layer": normal(E, E)}
        self.tensors |= {"slopes": (normal(5).exp()).detach().requires_grad_()} if pieces else {}
        self.target, self.scale = torch.randint(V, (N,)), None

    def logits(self, log_weight, context, weight, *others):
        names = list(self.tensors)[3:]
        given = dict(zip(names, others, strict=True))
        pieces = Pieces(given["slopes"], 2.0) if "slopes" in given else None
        return Logits(
            columns_of,
            BLOCKS,
            weight,
            given.get("bias"),
            shared=(given["layer"],),
            num_softmaxes=K,
            num_own=S,
            pieces=pieces,
        )

    def streamed(self, *tensors, **options):
        log_weight, context, *_ = tensors or self.leaves
        logits = self.logits(*(tensors or self.leaves))
        log_weight = log_weight.log_softmax(-1)
        return streamed_cross_entropy(
            logits, log_weight, [context], self.target, self.scale, **options
        )

    def defined(self):
        """The losses of all tokens, by autograd."""
        log_weight, context, *_ = self.leaves
        logits = self.logits(*self.leaves)
        z = logits_of(logits, [context])
        z = z if logits.pieces is None else logits.pieces(z)
        log_q = z.log_softmax(-1)[torch.arange(N), :, self.target]  # (N, K)
        loss = -(log_weight.log_softmax(-1) + log_q).logsumexp(-1)
        return loss if self.scale is None else loss * self.scale

    @property
    def leaves(self):
        return list(self.tensors.values())


@pytest.fixture(params=[1, 4, 100])
def chunk_bytes(request):
    """For so many tokens."""
    return request.param * K * V * 8


def test_the_columns_are_where_they_belong():
    problem = Problem()
    _, context, weight, bias, layer = problem.leaves
    got = logits_of(problem.logits(*problem.leaves), [context])
    first, second, third = torch.tanh(context @ layer).unbind(1)
    want = torch.empty(N, K, V).double()
    want[:, 0, :2] = F.softplus(first @ weight[:2].T)
    for column, (source, row) in enumerate(
        [(first, 2), (first, 4), (first, 6), (second, 3), (second, 5)], start=2
    ):
        want[:, 0, column] = source @ weight[row]
    want[:, 0] += bias[[0, 1, 2, 4, 6, 3, 5]]
    want[:, 1] = third @ weight.T + bias
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"pieces": True}], ids=str)
@pytest.mark.parametrize("is_weighted", [False, True], ids=["", "weighted"])
def test_values_and_gradients_are_those_of_the_definition(chunk_bytes, scale, options, is_weighted):
    problem = Problem(scale, **options)
    if is_weighted:
        problem.scale = torch.arange(N).remainder(3).double()
    token_loss, total = problem.streamed(chunk_bytes=chunk_bytes)
    want = problem.defined()
    torch.testing.assert_close(token_loss, want, rtol=1e-10, atol=1e-10)
    got, wanted = (torch.autograd.grad(3 * x.sum(), problem.leaves) for x in (total, want))
    for one, other in zip(got, wanted, strict=True):
        size = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one / size, other / size, rtol=0, atol=1e-10)


def test_gradients_are_those_of_finite_differences(chunk_bytes):
    problem = Problem()
    assert gradcheck(
        lambda *tensors: problem.streamed(*tensors, chunk_bytes=chunk_bytes)[1],
        problem.leaves,
        nondet_tol=1e-12,
    )


def test_an_impossible_target_has_infinite_loss_and_no_gradient():
    problem = Problem()
    problem.tensors["bias"].data[2] = -torch.inf
    problem.target[:] = torch.tensor([2, 2, 0, 1, 3, 4, 5, 6, 2])
    # Column 2 is row 2 in both softmaxes.
    token_loss, total = problem.streamed()
    impossible = problem.target == 2
    assert (token_loss == torch.inf).equal(impossible) and total.isfinite()
    got = torch.autograd.grad(total, problem.leaves)
    problem.target[impossible], problem.scale = 0, (~impossible).double()
    want = torch.autograd.grad(problem.defined().sum(), problem.leaves)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("trained", ["log_weight", "context", "weight", "bias", "layer"])
def test_any_input_can_be_trained_alone(trained):
    problem = Problem()
    want = torch.autograd.grad(problem.streamed()[1], problem.tensors[trained])
    for name, tensor in problem.tensors.items():
        tensor.requires_grad_(name == trained)
    total = problem.streamed()[1]
    first = torch.autograd.grad(total, problem.tensors[trained], retain_graph=True)
    first = [gradient.clone() for gradient in first]
    torch.testing.assert_close(tuple(first), want, rtol=0, atol=1e-12)
    # A second backward pass gives the same.
    again = torch.autograd.grad(total, problem.tensors[trained])
    torch.testing.assert_close(again, tuple(first), rtol=0, atol=0)


def test_only_wanted_gradients_are_made(watch):
    problem = Problem()

    def num_multiplies():
        with watch() as seen:
            problem.streamed()
        return seen.num_multiplies

    everything = num_multiplies()
    problem.tensors["weight"].requires_grad_(False)
    # Of the three blocks, and of the first columns.
    assert everything - num_multiplies() == 4
    with torch.no_grad():
        assert num_multiplies() == 5


def test_without_a_look_at_the_numbers_it_is_the_same(monkeypatch):
    """As on an accelerator."""
    problem = Problem(scale=30.0)
    want = problem.streamed()
    monkeypatch.setattr("highrank.ops.streamed_cross_entropy.is_static", lambda tensor: True)
    got = problem.streamed()
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(x[1], problem.leaves) for x in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


def test_saved_tensors_are_read_once():
    problem, packed, unpacked = Problem(), [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(1) or t, lambda t: unpacked.append(1) or t
    ):
        log_weight, context, *_ = problem.leaves
        logits = problem.logits(*problem.leaves)
        total = streamed_cross_entropy(logits, log_weight, [context], problem.target)[1]
    total.backward()
    assert len(packed) == len(unpacked) > 0
