"""`bench step` and `bench hf`: a training step of the paper's models, and one of a GPT-2.

A step of the paper's models is what the training loop does with a window: forward, penalties,
backward, clipping, SGD. That of a GPT-2 small of transformers, whose 50,257 tokens share one
embedding for input and output, is forward and backward; the memory of a head is what it needs
beyond the body alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank import presets
from highrank.build import build_model
from highrank.data.batches import Batch
from highrank.heads import Head, HeadOutput, MixtureOfSoftmaxes
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.upgrade import upgrade
from highrank.progress import OnProgress
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import dense_log_prob, original_log_prob
from highrank.training.trainer import Trainer

VOCAB_SIZE, SEED = 10_000, 0
ORIGINAL = "ptb-mos, original head"
# The preset of each variant.
PRESETS = {"ptb-mos": "ptb-mos", ORIGINAL: "ptb-mos", "ptb-softmax": "ptb-softmax"}
BODY, PLAIN, OURS = "body alone", "softmax, transformers", "MoS, our loss"
SOFTMAX, DENSE = "softmax, our loss", "MoS, dense logits"
VARIANTS = (BODY, PLAIN, SOFTMAX, OURS, DENSE)
NUM_COMPONENTS = 4
# Losses of layers that start alike may differ by so much.
TOLERANCE = 1e-3


class OriginalMixture(MixtureOfSoftmaxes):
    """The head of the paper's code."""

    def forward(self, hidden: Tensor, target: Any = None, *_: Any, **__: Any) -> Any:
        log_weight, context = self.mixture(hidden)  # (..., K), (..., K, E)
        log_p = original_log_prob(context, log_weight, self.weight, self.bias)  # (..., V)
        output = log_p.gather(-1, target[..., None]).squeeze(-1)  # (...)
        return HeadOutput(output, -output.mean())


def run_step_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: OnProgress = harness.silent
) -> harness.BenchResult:
    """Measure a step of ptb-mos, of ptb-mos with the original head, and of ptb-softmax.

    Args:
        quick: windows of 10 tokens instead of 70.
    """
    window = 10 if quick else 70
    result = harness.measure(
        {"": harness.make_variants(prepare_step, PRESETS, (window,), (2,))},
        title="One training step of the paper's Penn Treebank models",
        method="Forward, backward, clipping and update, float32.",
        baselines=("ptb-mos",),
        rounds=rounds,
        on_progress=on_progress,
    )
    tokens = {
        name: presets.get(preset).batch.batch_size * window for name, preset in PRESETS.items()
    }
    return replace(result, groups=(replace(result.groups[0], numbers={"tokens": tokens}),))


def prepare_step(name: str, window: int) -> Callable[[], float]:
    """A function that does one step, and returns its loss before the update."""
    config = presets.get(PRESETS[name])
    torch.manual_seed(SEED)
    model = build_model(config, VOCAB_SIZE)
    tokens = torch.randint(VOCAB_SIZE, (window + 1, config.batch.batch_size))  # (T + 1, B)
    if name == ORIGINAL:
        model.head = original_head(model.head)
        model.tie_again()
    # The same weights in every round.
    trainer = Trainer(model, replace(config.train, lr=1e-30))
    batch = Batch(tokens[:-1], tokens[1:], num_targets=tokens[1:].numel())

    def step() -> float:
        # The same masks for all: they are not what is compared.
        torch.manual_seed(SEED)
        return trainer.step(batch)

    return step


def original_head(head: Head) -> OriginalMixture:
    """The paper's head with the weights of ours."""
    assert isinstance(head, MixtureOfSoftmaxes)
    found = OriginalMixture(
        head.hidden_size,
        head.vocab_size,
        num_components=head.num_components,
        embedding_size=head.embedding_size,
        dropout=head.dropout,
    )
    found.load_state_dict(head.state_dict())
    return found


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
