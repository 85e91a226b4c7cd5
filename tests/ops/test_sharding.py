"""Vocabularies over processes: who has what, mistakes that all processes see, what is sent."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss
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
    """What a process says if it, or only the first one, makes a mistake."""
    rank, (start, stop) = dist.get_rank(), bounds()
    context, log_weight, weight, bias, target = make_problem()
    weight, bias = weight[start:stop], bias[start:stop]
    options = {"shard": (start, stop)}
    if name == "rows":
        weight = weight[: len(weight) - (rank == 0)]
        bias = bias[: len(weight)]
    elif name == "gap":
        options["shard"] = (start + 1, stop + 1)
    elif name == "number of tokens":
        keep = N - (rank == 0)
        context, log_weight, target = context[:keep], log_weight[:keep], target[:keep]
    elif name == "context":
        context = context + rank
    elif name == "target":
        target = (target + rank) % V
    elif name == "chunk_bytes":
        options["chunk_bytes"] = 500 * (1 + rank)
    elif name == "backend":
        options["backend"] = "chunked"
    elif name == "range":
        target = target + 1
    elif name == "group alone":
        options = {"group": dist.group.WORLD}
    elif name == "func":
        loss = torch.func.grad(
            lambda h: mixture_cross_entropy(h, log_weight, weight, target, bias=bias, **options)
        )
        return error_of(loss, context)
    return error_of(
        mixture_cross_entropy, context, log_weight, weight, target, bias=bias, **options
    )


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


def test_a_whole_vocabulary_has_no_shards():
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
    """Log-probabilities and predictions in a group without the last process."""
    group = dist.new_group(list(range(dist.get_world_size() - 1)))
    context, log_weight, weight, bias, _ = make_problem()
    if dist.get_rank() == dist.get_world_size() - 1:
        return None
    start, stop = (0, V) if group.size() == 1 else ((0, 2), (2, V))[group.rank()]
    arguments = context, log_weight, weight[start:stop], bias[start:stop]
    options = {"group": group, "shard": (start, stop)}
    return mixture_log_prob(*arguments, **options), mixture_argmax(*arguments, **options)


def test_a_group_need_not_have_all_processes(processes):
    context, log_weight, weight, bias, _ = make_problem()
    want = mixture_log_prob(context, log_weight, weight, bias)
    *found, nothing = processes(pairs)
    assert nothing is None
    for log_p, best in found:
        torch.testing.assert_close(log_p, want, rtol=0, atol=1e-12)
        torch.testing.assert_close(best, want.argmax(-1))


def traffic(reduction):
    """What a process sends for a loss in three chunks, and for its gradients."""
    start, stop = bounds()
    context, log_weight, weight, bias, target = make_problem()
    leaves = [x.requires_grad_() for x in (context, log_weight, weight[start:stop])]
    most = max(3, V - dist.get_world_size() - 1)
    with Watch() as forward:
        loss = mixture_cross_entropy(
            *leaves,
            target,
            bias=bias[start:stop],
            shard=(start, stop),
            reduction=reduction,
            chunk_bytes=3 * K * most * 8,
        )
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


def size_of_work(num_tokens):
    """Numbers in the largest tensor of a loss and its gradients."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = 600 // size
    context, weight = torch.randn(num_tokens, 2, 3), torch.randn(rows, 3)
    target = torch.arange(num_tokens)
    context.requires_grad_(), weight.requires_grad_()
    with Watch() as seen:
        mixture_cross_entropy(
            context,
            torch.randn(num_tokens, 2),
            weight,
            target,
            shard=(rank * rows, (rank + 1) * rows),
            chunk_bytes=4 * 2 * rows * 4,
        ).backward()
    return seen.largest


def test_memory_is_that_of_a_chunk_of_the_rows_that_are_here(processes):
    for found in processes(size_of_work, 40):
        assert found == 4 * 2 * (600 // processes.size)


def second_derivatives():
    start, stop = bounds()
    context, log_weight, weight, bias, target = make_problem()
    context.requires_grad_()
    loss = mixture_cross_entropy(
        context, log_weight, weight[start:stop], target, bias=bias[start:stop], shard=(start, stop)
    )
    return error_of(torch.autograd.grad, loss, context, create_graph=True)


def test_second_derivatives_are_refused(processes):
    for found in processes(second_derivatives):
        assert found == "Second derivatives of a sharded loss are not available."


def unpacked():
    """How often saved tensors are read, and how many there are."""
    start, stop = bounds()
    context, log_weight, weight, bias, target = make_problem()
    context.requires_grad_()
    packed, read = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: packed.append(x) or x, lambda x: read.append(x) or x
    ):
        out = mixture_loss(
            context,
            log_weight,
            weight[start:stop],
            target,
            bias=bias[start:stop],
            shard=(start, stop),
        )
    out.loss.backward()
    return len(packed), len(read)


def test_saved_tensors_are_read_once(processes):
    for packed, read in processes(unpacked):
        assert packed == read > 0
