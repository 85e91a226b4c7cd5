"""Time and memory of `head_kl`: one forward and backward pass, from hidden states to gradients.

    python benchmarks/divergence.py --threads 1

The student is one softmax; the teacher is one, or a mixture of five. N tokens, n of a chunk, K
components of the teacher, E embedding size, V vocabulary, v columns of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import tyro

from highrank import MixtureOfSoftmaxes, Softmax, head_kl
from highrank.cli.console import Threads, progress, show
from highrank.environment import set_threads
from highrank.ops.divergence import Direction
from highrank.ops.divergence.sides import Sizes, Softmaxes
from highrank.progress import OnProgress
from highrank.studies.bench.harness import BenchResult, Variant, measure
from highrank.studies.bench.page import bench_table

CASES: dict[str, tuple[int, Direction]] = {
    "K = 1, forward": (1, "forward"),
    "K = 1, reverse": (1, "reverse"),
    "K = 1, js": (1, "js"),
    "K = 5, forward": (5, "forward"),
}
BACKENDS = {"streamed": "auto", "dense": "dense"}


# N, V, E.
Shape = tuple[int, int, int]
TINY = (64, 1000, 32)


def divergence(
    *,
    tokens: int = 512,
    vocab_size: int = 262_144,
    size: int = 64,
    rounds: int = 5,
    dense: bool = True,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Compare `head_kl` with the matrix multiplies that it does, and with those it cannot avoid.

    Args:
        tokens: N.
        vocab_size: V.
        size: E, of both output embeddings.
        rounds: How often each variant's time is taken; the best counts.
        dense: Also measure the dense backend, which takes ten times as long.
        json: Print the numbers as JSON instead of a table.
        threads: Of the matrix multiplies.
    """
    set_threads(threads)
    with progress("Measuring divergences") as on_progress:
        backends = [name for name in BACKENDS if dense or name != "dense"]
        result = run((tokens, vocab_size, size), backends, rounds, on_progress)
    show(result, bench_table, json=json)


def run(shape: Shape, backends: Sequence[str], rounds: int, on_progress: OnProgress) -> BenchResult:
    result = measure(
        {name: variants(shape, backends, *case) for name, case in CASES.items()},
        title=f"Divergences of two heads: N = {shape[0]:,}, V = {shape[1]:,}, E = {shape[2]}",
        method=(
            "Float32, gradients to hidden states, output embedding and bias of a softmax. bound: "
            "both heads' logits once, and two multiplies for the gradients. matmul: all that is "
            "multiplied; logits that are not kept are made again in each pass. gradients: memory "
            "as a multiple of the weight's gradient."
        ),
        baselines=("bound", "matmul"),
        rounds=rounds,
        check=lambda _, values: check(values),
        on_progress=on_progress,
    )
    unit = 4 * shape[1] * shape[2]
    peaks = [{m.name: (m.peak_bytes or 0) / unit for m in g.measurements} for g in result.groups]
    pairs = zip(result.groups, peaks, strict=True)
    return replace(result, groups=tuple(replace(g, numbers={"gradients": p}) for g, p in pairs))


def variants(
    shape: Shape, backends: Sequence[str], num_components: int, direction: Direction
) -> list[Variant]:
    passes = 2 if direction == "forward" else 3
    works: dict[str, Callable[[Shape], Callable[[], float]]] = {
        "bound": partial(prepare_matmul, num_components, 1),
        "matmul": partial(prepare_matmul, num_components, passes),
        **{name: partial(prepare, num_components, direction, name) for name in backends},
    }
    return [
        Variant(name=name, prepare=partial(work, shape), warm_up=partial(work, TINY))
        for name, work in works.items()
    ]


def check(values: dict[str, float]) -> dict[str, str]:
    found = [values[name] for name in BACKENDS if name in values]
    if abs(found[0] - found[-1]) > 1e-4 * abs(found[-1]):
        raise RuntimeError(f"all variants must have the same divergence, got {found}")
    return {}


def prepare(K: int, direction: Direction, name: str, shape: Shape) -> Callable[[], float]:
    torch.manual_seed(0)
    N, V, E = shape
    teacher, student = MixtureOfSoftmaxes(E, V, K, E), Softmax(E, V)
    hidden = torch.randn(2, N, E)
    inputs = [hidden[0].requires_grad_(), *student.parameters()]

    def work() -> float:
        loss = head_kl(student, inputs[0], teacher, hidden[1], direction, backend=BACKENDS[name])
        torch.autograd.grad(loss, inputs)
        return loss.item()

    return work


def prepare_matmul(K: int, passes: int, shape: Shape) -> Callable[[], float]:
    """The multiplies alone, on the blocks of the streamed divergence, into existing memory."""
    N, V, E = shape
    student, teacher = torch.randn(V, E), torch.randn(V, E)
    context, rows = torch.randn(N, 1, E), torch.randn(N * K, E)
    source = Softmaxes(context, torch.zeros(N, 1), student, None, None)
    other = source._replace(context=rows.view(N, K, E))
    n, v, keeps = Sizes.of(source, other, torch.float32, None, True)
    of_weight, of_rows = torch.zeros(V, E), torch.zeros(N, E)
    passes = 1 if keeps else passes
    blocks = list(zip(*(x.split(v) for x in (student, teacher, of_weight)), strict=True))
    chunks = list(zip(context[:, 0].split(n), rows.split(n * K), of_rows.split(n), strict=True))
    table, other_table = torch.empty(n, v), torch.empty(n * K, v)

    def work() -> float:
        for h, t, of_h in chunks:
            for number in range(passes):
                for w, u, of_w in blocks:
                    z = torch.mm(h, w.T, out=table[: len(h), : len(w)])
                    torch.mm(t, u.T, out=other_table[: len(t), : len(w)])
                    if number == passes - 1:
                        of_h.addmm_(z, w)
                        of_w.addmm_(z.T, h)
        return 0.0

    return work


if __name__ == "__main__":
    tyro.cli(divergence, config=(tyro.conf.FlagCreatePairsOff,))
