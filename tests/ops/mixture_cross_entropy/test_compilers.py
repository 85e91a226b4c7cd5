"""torch.compile, torch.export, fake tensors, the meta device and flop counters know the loss."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy

K, E, V = 3, 4, 7
OPTIONS = {
    "plain": {},
    "softcap": {"logit_map": Softcap(3.0)},
    "smoothing": {"label_smoothing": 0.1, "z_loss": 0.2},
}
options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


def loss_of(context, log_weight, weight, bias, target, **options):
    return mixture_cross_entropy(context, log_weight, weight, target, bias=bias, **options)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(backend, **options):
    """The loss as one graph, for any number of tokens."""
    return torch.compile(
        lambda *tensors: loss_of(*tensors, **options),
        backend=backend,
        fullgraph=True,
        dynamic=True,
    )


@pytest.mark.parametrize(
    "reduction, name", [("mean", "plain"), ("sum", "softcap"), ("none", "smoothing")]
)
def test_a_compiled_loss_is_the_eager_one(problem, solve, agree, reduction, name):
    inputs, options = problem((9,)), OPTIONS[name]
    inputs.target[2] = -100
    leaves = [t.detach().requires_grad_() for t in inputs[:-1]]
    loss = compiled("aot_eager", reduction=reduction, **options)(*leaves, inputs.target)
    upstream = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    grads = torch.autograd.grad(loss, leaves, upstream)
    want = solve(inputs, upstream=upstream, reduction=reduction, backend="reference", **options)
    agree((loss.detach(), *grads), want)


def test_three_batch_sizes_are_one_graph(problem):
    counter = CompileCounter()
    function = compiled(counter)
    for num_tokens in (5, 8, 13):
        function(*problem((num_tokens,)))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["mixture_token_loss", "mixture_gradients"])
def test_the_operators_pass_checks_of_torch(problem, name):
    context, log_weight, weight, bias, target = problem((5,))
    leaves = [t.requires_grad_(name == "mixture_token_loss") for t in (context, log_weight, weight)]
    given = (*leaves, bias, None, target[:, None], None, None, None, None, "", [], 0.0, None)
    if name == "mixture_gradients":
        given = (torch.ones(5, dtype=torch.float64), *given, [True, True, True, True, False])
    torch.library.opcheck(getattr(torch.ops.highrank, name).default, given)


@reductions
@pytest.mark.parametrize("device", ["meta", "fake"])
def test_shapes_are_known_without_numbers(problem, reduction, device):
    inputs = problem((2, 5))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in inputs]
    tensors = fake if device == "fake" else [t.to("meta") for t in inputs]
    leaves = [t.requires_grad_() for t in tensors[:-1]]
    loss = loss_of(*leaves, tensors[-1], reduction=reduction)
    loss.sum().backward()
    assert loss.shape == ((2, 5) if reduction == "none" else ())
    assert all(leaf.grad.shape == leaf.shape for leaf in leaves)


def test_a_flop_counter_counts_three_products(problem):
    inputs = problem((9,), K=K, E=E, V=V)
    leaves = [t.detach().requires_grad_() for t in inputs[:-1]]
    one = 2 * 9 * K * E * V
    for backend in ("fused", "registered"):
        with FlopCounterMode(display=False) as counter:
            loss_of(*leaves, inputs.target, backend=backend, reduction="mean").backward()
        assert counter.get_total_flops() == 3 * one, backend


@options
@reductions
def test_on_an_accelerator_the_host_never_waits(monkeypatch, problem, syncs, reduction, options):
    inputs = problem((9,))
    inputs.target[2] = -100
    leaves = [t.detach().requires_grad_() for t in inputs[:-1]]
    for module in ("loss.targets", "mixture_cross_entropy.reducer"):
        path = f"highrank.ops.{module}.is_static"
        monkeypatch.setattr(path, lambda tensor: True)
    monkeypatch.setattr("highrank.ops.mixture_cross_entropy.check_targets", lambda *_: None)
    want = loss_of(*leaves, inputs.target, reduction=reduction, backend="reference", **options)
    with syncs() as mode:
        got = loss_of(*leaves, inputs.target, reduction=reduction, chunk_bytes=400, **options)
        got.sum().backward()
    torch.testing.assert_close(got, want)
    assert mode.seen == []
