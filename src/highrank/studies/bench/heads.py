"""`bench heads`: forward and backward of every output layer, as ratios to one softmax of its sizes.

Beside the time stands what is multiplied, as torch's flop counter counts it: how much of the
price is the head's idea, and how much is overhead.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from highrank import presets
from highrank.build import build_head
from highrank.config import HeadConfig
from highrank.environment import environment
from highrank.heads import HEADS, head_arguments
from highrank.studies.bench import harness

# One softmax over a context of its own: a mixture with one component.
CONTROL = "softmax, E"
# A power of two, which Mixtape asks for.
NUM_COMPONENTS = 4
# Heads that are meant to stand beside one softmax.
SINGLE = ("constant", "pointer", "pointwise")
SEED, LENGTH, BATCH_SIZE = 0, 70, 10
SIZES = ((64, 10_000), (256, 10_000), (64, 50_000), (256, 50_000))


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    embedding_size: int
    vocab_size: int
    flop_ratios: dict[str, float]
    """Of each head, in multiples of the control's."""
    measurements: tuple[harness.Measurement, ...]


@dataclass(frozen=True, kw_only=True)
class HeadBenchResult(harness.BenchResult):
    num_tokens: int
    num_components: int
    sizes: tuple[HeadSizes, ...]


def run_head_bench(
    kinds: Sequence[str] = (),
    *,
    rounds: int = 5,
    quick: bool = False,
    on_progress: harness.OnProgress = harness.silent,
) -> HeadBenchResult:
    """Measure time and memory of heads of 700 tokens.

    Args:
        kinds: keys of `HEADS`; all of them if there are none.
        quick: the smallest sizes only, and at most two rounds.
    """
    harness.check_rounds(rounds)
    if unknown := [kind for kind in kinds if kind not in HEADS]:
        raise ValueError(f"heads must be among {', '.join(HEADS)}, got {unknown[0]}")
    names, start = [CONTROL, *(kinds or HEADS)], time.monotonic()
    sizes = SIZES[:1] if quick else SIZES
    found = []
    for index, (embedding_size, vocab_size) in enumerate(sizes):
        own = harness.part(on_progress, index / len(sizes), (index + 1) / len(sizes))
        variants = [_variant(name, embedding_size, vocab_size) for name in names]
        measurements = harness.compare(
            variants,
            rounds=min(rounds, 2) if quick else rounds,
            baselines=(CONTROL,),
            on_progress=own,
        )
        flops = {name: count_flops(name, embedding_size, vocab_size) for name in names}
        found.append(
            HeadSizes(
                embedding_size=embedding_size,
                vocab_size=vocab_size,
                flop_ratios={name: number / flops[CONTROL] for name, number in flops.items()},
                measurements=measurements,
            )
        )
    return HeadBenchResult(
        rounds=rounds,
        elapsed=time.monotonic() - start,
        environment=environment(),
        num_tokens=LENGTH * BATCH_SIZE,
        num_components=NUM_COMPONENTS,
        sizes=tuple(found),
    )


def pass_of(name: str, embedding_size: int, vocab_size: int) -> Callable[[], float]:
    """A function that does a forward and a backward pass, and returns the loss."""
    config = presets.get("ptb-small-mos")
    kind = "mos" if name == CONTROL else name
    is_mixture = "num_components" in head_arguments(kind) and name not in (CONTROL, *SINGLE)
    # The plain softmax has no context of its own: its hidden states have the size E.
    layer_sizes = (embedding_size, 320, embedding_size if kind == "softmax" else 256)
    config = replace(
        config,
        model=replace(config.model, embedding_size=embedding_size),
        head=HeadConfig(kind=kind, num_components=NUM_COMPONENTS if is_mixture else 1, dropout=0.0),
    )
    torch.manual_seed(SEED)
    # As frequent as in Zipf's law: what an adaptive head is made for.
    frequency = 1 / torch.arange(1, vocab_size + 1)  # (V,)
    counts = (1e6 * frequency / frequency.sum()).long().add(1).tolist()
    head = build_head(config, vocab_size, counts, layer_sizes)
    tokens = frequency.multinomial((LENGTH + 1) * BATCH_SIZE, replacement=True)
    tokens = tokens.view(LENGTH + 1, BATCH_SIZE)  # (T + 1, B)
    hidden = torch.randn(LENGTH, BATCH_SIZE, head.hidden_size).tanh().requires_grad_()
    past = {}
    if head.is_stateful:
        past = {"tokens": tokens[:-1], "state": head.initial_state(BATCH_SIZE)}
    differentiable = [hidden, *head.parameters()]

    def work() -> float:
        # Not `autograd.grad`, under which torch's flop counter cannot follow the leaves.
        for tensor in differentiable:
            tensor.grad = None
        loss = head(hidden, tokens[1:], **past).loss
        loss.backward()
        return float(loss.item())

    return work


def count_flops(name: str, embedding_size: int, vocab_size: int) -> int:
    work = pass_of(name, embedding_size, vocab_size)
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def _variant(name: str, embedding_size: int, vocab_size: int) -> harness.Variant:
    return harness.Variant(
        name=name,
        prepare=partial(pass_of, name, embedding_size, vocab_size),
        warm_up=partial(pass_of, name, 8, 500),
    )
