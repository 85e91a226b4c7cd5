"""`bench hf`: a training step of a model of transformers, forward and backward.

It is a GPT-2 small, whose 50,257 tokens share one embedding for input and output. The memory of a
head is what it needs beyond the body alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.upgrade import upgrade
from highrank.progress import OnProgress
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import dense_log_prob

SEED = 0
BODY, PLAIN, OURS = "body alone", "softmax, transformers", "MoS, our loss"
SOFTMAX, DENSE = "softmax, our loss", "MoS, dense logits"
VARIANTS = (BODY, PLAIN, SOFTMAX, OURS, DENSE)
NUM_COMPONENTS = 4
# Losses of layers that start alike may differ by so much.
TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class BodySize:
    """Sizes of a GPT-2, and the tokens of a step."""

    num_layers: int = 12
    hidden_size: int = 768
    vocab_size: int = 50_257
    num_tokens: int = 512


FULL, QUICK = BodySize(), BodySize(num_layers=2, num_tokens=128)
TINY = BodySize(num_layers=1, hidden_size=12, vocab_size=100, num_tokens=8)


def run_huggingface_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: OnProgress = harness.silent
) -> harness.BenchResult:
    """Measure forward and backward of the body alone, of softmaxes and of mixtures.

    Args:
        quick: two blocks, a quarter of the tokens, and at most two rounds.
    """
    size = QUICK if quick else FULL
    result = harness.measure(
        {"": harness.make_variants(prepare_huggingface_step, VARIANTS, (size,), (TINY,))},
        title=f"A training step of a GPT-2 with {size.num_layers} blocks",
        method=(
            f"Forward and backward of {size.num_tokens} tokens, float32, D = {size.hidden_size}, "
            f"V = {size.vocab_size:,}, mixtures with K = {NUM_COMPONENTS}. head MiB: beyond "
            "those of the body alone."
        ),
        baselines=(BODY, OURS),
        rounds=min(rounds, 2) if quick else rounds,
        check=_check,
        on_progress=on_progress,
    )
    (group,) = result.groups
    numbers = {"head MiB": mib_beyond_body(group.measurements)}
    return replace(result, groups=(replace(group, numbers=numbers),))


def mib_beyond_body(measurements: Sequence[harness.Measurement]) -> dict[str, float | None]:
    """Memory of each variant beyond that of the body alone; None if unknown."""
    body, *others = measurements
    return {
        m.name: (m.peak_bytes - body.peak_bytes) / 2**20
        if m.peak_bytes and body.peak_bytes
        else None
        for m in others
    }


def prepare_huggingface_step(name: str, size: BodySize) -> Callable[[], float]:
    """A function that does forward and backward, and returns the loss."""
    model = build_gpt2(name, size).train()
    torch.manual_seed(SEED)
    tokens = torch.randint(size.vocab_size, (1, size.num_tokens))

    def step() -> float:
        model.zero_grad()
        if name == BODY:
            # Some number that needs all weights.
            loss = model.base_model(tokens).last_hidden_state.square().mean()
        else:
            loss = dense_loss(model, tokens) if name == DENSE else model(tokens, labels=tokens).loss
        loss.backward()
        return float(loss.item())

    return step


def build_gpt2(name: str, size: BodySize) -> Any:
    """A model with random weights, without dropout."""
    with quiet_transformers("measure a Hugging Face model") as transformers:
        config = transformers.GPT2Config(
            n_layer=size.num_layers,
            n_embd=size.hidden_size,
            vocab_size=size.vocab_size,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        torch.manual_seed(SEED)
        model = transformers.GPT2LMHeadModel(config)
    if name in (BODY, PLAIN):
        return model
    return upgrade(model, "softmax" if name == SOFTMAX else "mos", NUM_COMPONENTS)


def dense_loss(model: Any, tokens: Tensor) -> Tensor:
    """The loss of a mixture from the logits of all components and tokens at once."""
    head = model.get_output_embeddings().head
    log_weight, context = head.mixture(model.base_model(tokens).last_hidden_state)
    log_p = dense_log_prob(context, log_weight, head.weight, head.bias)  # (1, N, V)
    target = F.pad(tokens, (0, 1), value=-100)[:, 1:]  # (1, N)
    return F.nll_loss(log_p.flatten(0, -2), target.flatten())


def _check(_: str, values: Mapping[str, float]) -> dict[str, str]:
    losses = {name: value for name, value in values.items() if name != BODY}
    worst = max(losses.values()) - min(losses.values()) if losses else 0.0
    if not worst <= TOLERANCE:
        raise ValueError(f"all heads must have the same loss, got {losses}")
    return {}
