"""Bytes, FLOPs, time and memory of a training step on 8 to 512 accelerators, computed.

    python benchmarks/projection.py --vocab-size 100000 800000

The bytes are those of the algorithms; `benchmarks/scale.py` compares them with what processes here
send. Speeds are assumptions, given as options: nothing was measured on an accelerator.
E embedding size, K components, D hidden size, V vocabulary, P processes, n tokens of each.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import tyro
from rich.table import Table

from highrank.cli.console import Threads, show

NUM_PROCESSES, COMPONENTS = (8, 32, 128, 512), (1, 7, 15)
NUMBER, TOKEN = 4, 8  # bytes of a float32 and of a token's id


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step of a mixture of softmaxes with a tied embedding."""

    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_components: int
    body: int
    """Parameters of the network between the embeddings and the head."""
    tokens: int
    """n."""
    processes: int = 1

    @property
    def contexts(self) -> int:
        """Numbers of a token's contexts and of their weights: K·E + K."""
        return self.num_components * (self.embedding_size + 1)

    @property
    def table(self) -> int:
        """Parameters that have a row for each token: embedding and bias."""
        return self.vocab_size * (self.embedding_size + 1)

    @property
    def rest(self) -> int:
        """All other parameters: the body, and what makes contexts and weights (without bias)."""
        latent = (self.hidden_size + 1) * self.num_components * self.embedding_size
        return self.body + latent + self.hidden_size * self.num_components

    @property
    def flops(self) -> int:
        """Of one process, forward and backward; the same however the model is sharded."""
        logits = self.num_components * self.embedding_size * self.vocab_size
        return 6 * self.tokens * (self.rest + logits)

    def memory(self, shard: str) -> float:
        """Bytes of weights, gradients and AdamW's moments in a process; activations come on top."""
        part = 1 / self.processes if shard == "vocabulary" else 1
        own = 4 * (part * self.table + self.rest)
        # With `full`, whole weights and gradients in a step, beside its part of all four.
        return NUMBER * (own if shard != "full" else own / 2 + own / self.processes)

    def all_reduce(self, numbers: int) -> float:
        """Bytes that a process sends in a ring."""
        return 2 * NUMBER * numbers * (self.processes - 1) / self.processes

    def all_gather(self, own: float) -> float:
        """Bytes that a process sends in a ring so that all have what each has."""
        return own * (self.processes - 1)

    def replicated(self) -> float:
        """Bytes that a process sends in a step: the gradients of all parameters are summed."""
        return self.all_reduce(self.table + self.rest)

    def vocabulary(self) -> float:
        """The same with rows of the embeddings in each process: tokens, contexts and dH instead."""
        n, every = self.tokens, self.tokens * self.processes
        tokens = self.all_gather(2 * n * TOKEN)
        embeddings = self.all_reduce(every * self.embedding_size)
        embeddings += self.all_gather(n * self.embedding_size * NUMBER)
        contexts, rest = self.all_gather(n * self.contexts * NUMBER), self.all_reduce(self.rest)
        return tokens + embeddings + contexts + self.sums() + self.d_hidden() + rest

    def sums(self) -> float:
        """The N·K exchange: the largest logit of each softmax, its sum, and the target's logit."""
        return self.all_reduce(3 * self.tokens * self.processes * self.num_components)

    def d_hidden(self) -> float:
        """The gradients of all contexts, of which each process knows a part."""
        return self.all_reduce(self.tokens * self.processes * self.contexts)

    def full(self) -> float:
        """The same with FSDP2: parameters are gathered once, gradients reduced and scattered."""
        return 2 * self.all_gather(NUMBER * (self.table + self.rest) / self.processes)

    def full_by_gloo(self) -> float:
        """The same by gloo, which reduces and scatters by an all-reduce of each part."""
        return 1.5 * self.full()


def projection(
    *,
    vocab_size: tuple[int, ...] = (100_000, 800_000),
    embedding_size: int = 900,
    hidden_size: int = 1024,
    body: int = 16_000_000,
    tokens: int = 8192,
    tflops: float = 100.0,
    gigabytes: float = 25.0,
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Project a training step: its time, what of it is communication, the memory of a process.

    Args:
        vocab_size: V.
        embedding_size: E.
        hidden_size: D.
        body: Parameters of the network between the embeddings and the head.
        tokens: Of each accelerator in a step (n).
        tflops: 10¹² operations that an accelerator computes in a second: an assumption.
        gigabytes: 10⁹ bytes that it sends in a second: an assumption.
        json: Print the numbers as JSON instead of a table.
        threads: Not used; nothing is measured.
    """
    sizes = {"embedding_size": embedding_size, "hidden_size": hidden_size, "body": body}
    steps = [
        Step(vocab_size=V, num_components=K, processes=P, tokens=tokens, **sizes)
        for V, K, P in product(vocab_size, COMPONENTS, NUM_PROCESSES)
    ]
    rows = [_row(step, tflops * 1e12, gigabytes * 1e9) for step in steps]
    show({"rows": rows, "tflops": tflops, "gigabytes": gigabytes}, table, json=json)


def _row(step: Step, flops: float, bandwidth: float) -> dict[str, float]:
    compute = step.flops / flops
    ways = {"none": step.replicated(), "vocabulary": step.vocabulary(), "full": step.full()}
    sizes = {"V": step.vocab_size, "K": step.num_components, "P": step.processes}
    seconds = {way: compute + sent / bandwidth for way, sent in ways.items()}
    parts = {"N·K": step.sums() / bandwidth, "dH": step.d_hidden() / bandwidth}
    memory = {f"{way}, GB": step.memory(way) / 1e9 for way in ways}
    return {**sizes, "compute": compute, **seconds, **parts, **memory}


def table(result: dict[str, Any]) -> Table:
    """Milliseconds of a step, in all with each way of sharding; memory of a process."""
    sizes, times = ("V", "K", "P"), ("compute", "none", "vocabulary", "full", "N·K", "dH")
    memory = [name for name in result["rows"][0] if name.endswith("GB")]
    found = Table(*sizes, *times, *memory, title="Step time in ms (computed, not measured)")
    for row in result["rows"]:
        cells = [f"{row[x]:,.0f}" for x in sizes] + [f"{1000 * row[x]:,.1f}" for x in times]
        found.add_row(*cells, *(f"{row[x]:.2f}" for x in memory))
    return found


if __name__ == "__main__":
    tyro.cli(projection, config=(tyro.conf.FlagCreatePairsOff,))
