"""Vocabularies over processes: who has what, mistakes that all processes see, what is sent."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.mixture_log_prob import mixture_argmax, mixture_log_prob
from highrank.ops.sharding import shard_of

N, K, E, V = 9, 3, 4, 7


class Watch(TorchDispatchMode):
    """The operations between processes, with how many numbers, and the largest new tensor."""

    def __init__(self):
        super().__init__()
        self.operations, self.largest = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **kwargs or {})
        if func.namespace == "c10d":
            tensors = args[0][0] if isinstance(args[0][0], list) else args[0]
            size = sum(tensor.numel() for tensor in tensors)
            self.operations.append((func.overloadpacket.__name__, size))
        elif isinstance(results, torch.Tensor):
            self.largest = max(self.largest, results.numel())
        return results


def make_problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    context, log_weight = normal(N, K, E), normal(N, K).float().log_softmax(-1).to(dtype)
    return context, log_weight, normal(V, E), normal(V), torch.arange(N).remainder(V)


def bounds():
    """An uneven cut, in the reverse order of the processes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    cut = [0, *range(3, 3 + size - 1), V]
    return cut[size - 1 - rank], cut[size - rank]


def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return None


def mistakes(name):
    """The error of a process where it, or only the first one, makes a mistake."""
    rank, (start, stop) = dist.get_rank(), bounds()
    context, log_weight, weight, bias, target = make_problem()
    keep = N - 1 if name == "number of tokens" and rank == 0 else N
    rows = slice(start, stop - 1 if name == "rows" and rank == 0 else stop)
    options = {
        "backend": {"backend": "chunked"},
        "chunk_bytes": {"chunk_bytes": 500 * (1 + rank)},
        "gap": {"shard": (start + 1, stop + 1)},
        "group alone": {"shard": None, "group": dist.group.WORLD},
    }.get(name, {})
    options = {"shard": (start, stop), **options}
    context = context + rank if name == "context" else context
    target = {"target": (target + rank) % V, "range": target + 1}.get(name, target)

    def loss(context):
        tensors = context[:keep], log_weight[:keep], weight[rows], target[:keep]
        return mixture_cross_entropy(*tensors, bias=bias[rows], **options)

    return error_of(torch.func.grad(loss) if name == "func" else loss, context)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows", "weight must have rows"),
        ("gap", "shards must cover the vocabulary once, got"),
        ("number of tokens", "number of tokens must be the same in every process"),
        ("context", "context (dropout included) must be the same in every process"),
        ("target", "target must be the same in every process"),
        ("chunk_bytes", "chunk_bytes must be the same in every process"),
        ("backend", 'backend must be "auto" for a sharded vocabulary, got'),
        ("range", "target must be in 0 … 6 (V = 7), got 7"),
        ("group alone", "shard must be given with group, got None"),
        ("func", "shard must be left out inside torch.func transforms, got one"),
        ("none", None),
    ],
)
def test_a_mistake_in_one_process_is_an_error_in_all(processes, name, message):
    for found in processes(mistakes, name):
        assert found is None if message is None else message in found


def placements():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    context, log_weight, weight, bias, target = make_problem()
    rows, columns, copies = ([Shard(0)], [Shard(1)], [Replicate()])
    found = []
    for of_weight, of_bias in ((columns, rows), (copies, rows), (rows, copies), (rows, None)):
        w = distribute_tensor(weight, mesh, of_weight)
        b = bias if of_bias is None else distribute_tensor(bias, mesh, of_bias)
        found.append(error_of(mixture_cross_entropy, context, log_weight, w, target, bias=b))
    w = distribute_tensor(weight, mesh, rows)
    found.append(error_of(mixture_log_prob, context, log_weight, w, shard=(0, V)))
    found.append(error_of(mixture_log_prob, context, log_weight, weight, w))
    return found


def test_other_placements_are_refused(processes):
    for found in processes(placements):
        assert all("weight must be a DTensor with the placement Shard(0)" in x for x in found[:2])
        assert all("bias must be a DTensor that is sharded as weight is" in x for x in found[2:4])
        assert "group and shard must be left out for a DTensor" in found[4]
        assert "bias must be sharded as weight is" in found[5]


def test_shards_need_processes():
    context, log_weight, weight, _, target = make_problem()
    with pytest.raises(ValueError, match="shard must come after torch.distributed.init_process_gr"):
        mixture_cross_entropy(context, log_weight, weight, target, shard=(0, V))
    with pytest.raises(ValueError, match="shard must be 0 ≤ start ≤ stop, got"):
        mixture_cross_entropy(context, log_weight, weight, target, shard=(3, 2))
    assert shard_of(torch.zeros(3, 2)) is None


def distributed_loss(dtype):
    """The loss with a weight that is a DTensor and with contexts that are, too."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    context, log_weight, weight, bias, target = make_problem(dtype)
    weight, bias = (distribute_tensor(x, mesh, [Shard(0)]).requires_grad_() for x in (weight, bias))
    context = distribute_tensor(context, mesh, [Shard(0)]).requires_grad_()
    loss = mixture_cross_entropy(context, log_weight, weight, target, bias=bias)
    loss.backward()
    assert all(isinstance(x.grad, DTensor) for x in (context, weight, bias))
    gradients = [x.grad.full_tensor() for x in (context, weight, bias)]
    return [x.detach().double() for x in (loss, *gradients)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 0.01)],
    ids=str,
)
def test_distributed_tensors_are_taken_as_they_are(processes, dtype, tolerance):
    context, log_weight, weight, bias, target = make_problem(dtype)
    leaves = [x.double().requires_grad_() for x in (context, weight, bias)]
    loss = mixture_cross_entropy(
        leaves[0], log_weight.double(), leaves[1], target, bias=leaves[2], backend="reference"
    )
    want = [loss.detach(), *torch.autograd.grad(loss, leaves)]
    for got in processes(distributed_loss, dtype):
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


def pairs():
    """Log-probabilities, predictions and gradients in a group without the last process."""
    group = dist.new_group(list(range(dist.get_world_size() - 1)))
    context, log_weight, weight, bias, _ = make_problem()
    if dist.get_rank() == dist.get_world_size() - 1:
        return None
    start, stop = (0, V) if group.size() == 1 else ((0, 2), (2, V))[group.rank()]
    arguments = context, log_weight, weight[start:stop], bias[start:stop]
    arguments, options = [x.requires_grad_() for x in arguments], {"shard": (start, stop)}
    log_p = mixture_log_prob(*arguments, group=group, **options)
    gradients = torch.autograd.grad(log_p.square().sum(), arguments)
    best = mixture_argmax(*arguments, group=group, **options)
    return log_p.detach(), best, (start, stop), gradients


def test_a_group_need_not_have_all_processes(processes):
    leaves = [x.requires_grad_() for x in make_problem()[:4]]
    want = mixture_log_prob(*leaves)
    d_context, d_log_weight, *d_rows = torch.autograd.grad(want.square().sum(), leaves)
    *found, nothing = processes(pairs)
    assert nothing is None
    for log_p, best, rows, gradients in found:
        torch.testing.assert_close(log_p, want.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(best, want.argmax(-1))
        of_rows = (d[slice(*rows)] for d in d_rows)
        wanted = (d_context, d_log_weight, *of_rows)
        torch.testing.assert_close(gradients, wanted, rtol=0, atol=1e-10)


def traffic(reduction):
    """Exchanges of a process for a loss in three chunks, and for its gradients."""
    start, stop = bounds()
    context, log_weight, weight, bias, target = make_problem()
    leaves = [x.requires_grad_() for x in (context, log_weight, weight[start:stop])]
    most = max(3, V - dist.get_world_size() - 1)
    options = {"bias": bias[start:stop], "shard": (start, stop), "reduction": reduction}
    with Watch() as forward:
        loss = mixture_cross_entropy(*leaves, target, **options, chunk_bytes=3 * K * most * 8)
    with Watch() as backward:
        loss.sum().backward()
    return forward.operations, backward.operations


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_three_numbers_a_component_are_sent_and_the_gradient_of_the_contexts(processes, reduction):
    for forward, backward in processes(traffic, reduction):
        (gather, _), (check, few), *chunks = forward
        assert (gather, check) == ("allgather_", "allreduce_") and few <= 8
        assert {name for name, _ in chunks} == {"allreduce_"}
        assert sum(size for _, size in chunks) == 3 * N * K
        assert len(chunks) == 2 * 3
        assert backward == [("allreduce_", N * K * E)]


def float16_gradients():
    """Gradients of a vocabulary whose sums of exponentials are too large for float16."""
    rank, rows = dist.get_rank(), 140_000 // dist.get_world_size()
    weight = torch.zeros(rows, 2, dtype=torch.float16, requires_grad=True)
    context, log_weight = torch.ones(4, 1, 2).half().requires_grad_(), torch.zeros(4, 1)
    options = {"shard": (rank * rows, (rank + 1) * rows), "reduction": "sum"}
    loss = mixture_cross_entropy(context, log_weight, weight, torch.zeros(4).long(), **options)
    return [x.double() for x in torch.autograd.grad(loss, (context, weight))]


def test_a_large_vocabulary_does_not_overflow_float16(processes):
    for rank, (d_context, d_weight) in enumerate(processes(float16_gradients)):
        assert not d_context.any() and d_weight.isfinite().all()
        assert d_weight[0].tolist() == pytest.approx([-4.0 if rank == 0 else 0.0] * 2, abs=1e-3)


def size_of_work(num_tokens):
    """Numbers in the largest tensor of a loss and its gradients."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = 600 // size
    context, weight = torch.randn(num_tokens, 2, 3), torch.randn(rows, 3)
    target = torch.arange(num_tokens)
    context.requires_grad_(), weight.requires_grad_()
    options = {"shard": (rank * rows, (rank + 1) * rows), "chunk_bytes": 4 * 2 * rows * 4}
    with Watch() as seen:
        log_weight = torch.randn(num_tokens, 2)
        mixture_cross_entropy(context, log_weight, weight, target, **options).backward()
    return seen.largest


def test_memory_is_that_of_a_chunk_of_the_rows_that_are_here(processes):
    for found in processes(size_of_work, 40):
        assert found == 4 * 2 * (600 // processes.size)


def saved_tensors():
    """Number of tensors that are saved and read, and the error of second derivatives."""
    start, stop = bounds()
    context, log_weight, weight, bias, target = make_problem()
    context.requires_grad_()
    packed, read = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: packed.append(x) or x, lambda x: read.append(x) or x
    ):
        loss = mixture_cross_entropy(
            context, log_weight, weight[start:stop], target, bias=bias[start:stop], shard=bounds()
        )
    loss.backward(retain_graph=True)
    counts = len(packed), len(read)
    return *counts, error_of(torch.autograd.grad, loss, context, create_graph=True)


def test_saved_tensors_are_read_once_and_second_derivatives_are_refused(processes):
    for packed, read, error in processes(saved_tensors):
        assert packed == read > 0
        assert error == "Second derivatives of a sharded loss are not available."
