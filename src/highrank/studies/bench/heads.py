"""`bench heads`: forward and backward of every output layer, as ratios to one softmax of its sizes.

Beside the time stands what is multiplied, as torch's flop counter counts it: how much of the
price is the head's idea, and how much is overhead.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from highrank import presets
from highrank.build import build_head
from highrank.config import HeadConfig
from highrank.heads import COMPOSED, HEADS, head_class
from highrank.progress import OnProgress
from highrank.studies.bench import harness

# One softmax over a context of its own: a mixture with one component.
CONTROL = "softmax, E"
# A power of two, which Mixtape asks for.
NUM_COMPONENTS = 4
SEED, LENGTH, BATCH_SIZE = 0, 70, 10
# E and V.
SIZES = ((64, 10_000), (256, 10_000), (64, 50_000), (256, 50_000))
MULTIPLIES = "multiplies"


def run_head_bench(
    kinds: Sequence[str] = (),
    *,
    rounds: int = 5,
    quick: bool = False,
    on_progress: OnProgress = harness.silent,
) -> harness.BenchResult:
    """Measure time and memory of heads of 700 tokens.

    Args:
        kinds: as --head.kind takes them; all of the list, and some with components, if there are
            none.
        quick: the smallest sizes only, and at most two rounds.
    """
    for kind in kinds:
        head_class(kind)
    names = [CONTROL, *(kinds or (*HEADS, *COMPOSED))]
    sizes = {f"E = {E}, V = {V:,}": (E, V) for E, V in (SIZES[:1] if quick else SIZES)}
    result = harness.measure(
        {
            text: harness.make_variants(prepare_pass, names, size, (8, 500))
            for text, size in sizes.items()
        },
        title=f"Heads, {LENGTH * BATCH_SIZE} tokens, as ratios to {CONTROL}",
        method=(
            f"Forward and backward, float32; mixtures have K = {NUM_COMPONENTS}. Multiplies as "
            "torch's flop counter counts them, latent layers included, as a ratio, too."
        ),
        baselines=(CONTROL,),
        rounds=min(rounds, 2) if quick else rounds,
        on_progress=on_progress,
    )
    groups = []
    for group in result.groups:
        flops = {name: count_flops(name, *sizes[group.name]) for name in names}
        ratios = {name: number / flops[CONTROL] for name, number in flops.items()}
        groups.append(replace(group, numbers={MULTIPLIES: ratios}))
    return replace(result, groups=tuple(groups))


def prepare_pass(name: str, embedding_size: int, vocab_size: int) -> Callable[[], float]:
    """A function that does a forward and a backward pass, and returns the loss."""
    config = presets.get("ptb-small-mos")
    kind = "mos" if name == CONTROL else name
    is_mixture = name != CONTROL and head_class(kind).default_components > 1
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
    work = prepare_pass(name, embedding_size, vocab_size)
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())
