"""`bench hf`: a training step of a model of transformers, forward and backward.

It is a GPT-2 small, or a Marian, the encoder–decoder of the OPUS translation models. All embeddings
of a model are one. The memory of a head is what it needs for given hidden states, gradients of its
weights and of these states included: in a step, the body's own peak is at another time.

B texts, L tokens of a text, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Mapping
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
    """An architecture, its sizes, and the tokens of a step."""

    kind: str = "gpt2"
    title: str = "a GPT-2"
    num_layers: int = 12
    hidden_size: int = 768
    vocab_size: int = 50_257
    shape: tuple[int, int] = (1, 512)
    """B, L."""


GPT2 = BodySize()
# As Helsinki-NLP/opus-mt-de-en.
MARIAN = BodySize(
    kind="marian", title="a Marian", num_layers=6, hidden_size=512, vocab_size=58_101, shape=(8, 64)
)
SIZES = {"gpt2": GPT2, "marian": MARIAN}


def quick_size(size: BodySize) -> BodySize:
    """Two blocks, and a quarter of the tokens."""
    return replace(size, num_layers=2, shape=(size.shape[0], size.shape[1] // 4))


def tiny_size(size: BodySize) -> BodySize:
    return replace(size, num_layers=1, hidden_size=16, vocab_size=100, shape=(2, 8))


def run_huggingface_bench(
    kind: str = "gpt2",
    *,
    rounds: int = 5,
    quick: bool = False,
    on_progress: OnProgress = harness.silent,
) -> harness.BenchResult:
    """Measure forward and backward of the body alone, of softmaxes and of mixtures.

    Args:
        kind: a key of `SIZES`.
        quick: two blocks, a quarter of the tokens, and at most two rounds.
    """
    if kind not in SIZES:
        raise ValueError(f"model must be one of {', '.join(SIZES)}, got {kind!r}")
    size = quick_size(SIZES[kind]) if quick else SIZES[kind]
    sizes = ((size,), (tiny_size(size),))
    B, L = size.shape
    result = harness.measure(
        {"": harness.make_variants(prepare_huggingface_step, VARIANTS, *sizes)},
        title=f"A training step of {size.title} with {size.num_layers} blocks",
        method=(
            f"Forward and backward of {B * L} tokens, float32, D = {size.hidden_size}, "
            f"V = {size.vocab_size:,}, mixtures with K = {NUM_COMPONENTS}. head MiB: the "
            "output layer alone, forward and backward, with its gradients."
        ),
        baselines=(BODY, OURS),
        rounds=min(rounds, 2) if quick else rounds,
        check=_check,
        on_progress=on_progress,
    )
    (group,) = result.groups
    numbers = {"head MiB": head_mib(*sizes)}
    return replace(result, groups=(replace(group, numbers=numbers),))


def head_mib(size: tuple[BodySize], tiny: tuple[BodySize]) -> dict[str, float | None]:
    """Memory of each output layer alone; None if unknown."""
    variants = harness.make_variants(prepare_head_step, VARIANTS[1:], size, tiny)
    peaks = {v.name: harness.peak_memory(v.prepare, v.warm_up).num_bytes for v in variants}
    return {name: None if peak is None else peak / 2**20 for name, peak in peaks.items()}


def prepare_huggingface_step(name: str, size: BodySize) -> Callable[[], float]:
    """A function that does forward and backward, and returns the loss."""
    model = build_model(name, size).train()
    torch.manual_seed(SEED)
    tokens = torch.randint(size.vocab_size, size.shape)

    def step() -> float:
        model.zero_grad()
        if name == BODY:
            # Some number that needs all weights.
            loss = hidden_states(model, tokens).square().mean()
        elif name == DENSE:
            loss = head_loss(name, model, hidden_states(model, tokens), tokens)
        else:
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        return float(loss.item())

    return step


def prepare_head_step(name: str, size: BodySize) -> Callable[[], float]:
    """The same for the output layer alone."""
    model = build_model(name, size).train()
    torch.manual_seed(SEED)
    tokens = torch.randint(size.vocab_size, size.shape)
    hidden = torch.randn(*size.shape, size.hidden_size, requires_grad=True)

    def step() -> float:
        loss = head_loss(name, model, hidden, tokens)
        loss.backward()
        return float(loss.item())

    return step


def build_model(name: str, size: BodySize) -> Any:
    """A model with random weights, without dropout."""
    torch.manual_seed(SEED)
    model = (build_marian if size.kind == "marian" else build_gpt2)(size)
    if name in (BODY, PLAIN):
        return model
    return upgrade(model, "softmax" if name == SOFTMAX else "mos", NUM_COMPONENTS)


def build_gpt2(size: BodySize) -> Any:
    with quiet_transformers("measure a Hugging Face model") as transformers:
        config = transformers.GPT2Config(
            n_layer=size.num_layers,
            n_embd=size.hidden_size,
            n_head=size.hidden_size // 64 or 1,
            vocab_size=size.vocab_size,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        return transformers.GPT2LMHeadModel(config)


def build_marian(size: BodySize) -> Any:
    with quiet_transformers("measure a Hugging Face model") as transformers:
        start = size.vocab_size - 1
        config = transformers.MarianConfig(
            encoder_layers=size.num_layers,
            decoder_layers=size.num_layers,
            d_model=size.hidden_size,
            encoder_ffn_dim=4 * size.hidden_size,
            decoder_ffn_dim=4 * size.hidden_size,
            encoder_attention_heads=size.hidden_size // 64 or 1,
            decoder_attention_heads=size.hidden_size // 64 or 1,
            vocab_size=size.vocab_size,
            decoder_vocab_size=size.vocab_size,
            pad_token_id=start,
            decoder_start_token_id=start,
            dropout=0.0,
            use_cache=False,
        )
        return transformers.MarianMTModel(config)


def hidden_states(model: Any, tokens: Tensor) -> Tensor:
    """What the output layer gets (B, L, D); a source of a Marian is its target, too."""
    inputs = {"input_ids": tokens}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(tokens)
    found: Tensor = model.base_model(**inputs).last_hidden_state
    return found


def head_loss(name: str, model: Any, hidden: Tensor, tokens: Tensor) -> Tensor:
    """The loss of hidden states (B, L, D), from our loss or from all logits at once."""
    target = tokens
    if not model.config.is_encoder_decoder:
        target = F.pad(tokens, (0, 1), value=-100)[:, 1:]  # (B, L)
    output = model.get_output_embeddings()
    if name in (SOFTMAX, OURS):
        found: Tensor = output(hidden, target)
        return found
    if name == PLAIN:
        return F.cross_entropy(output(hidden).flatten(0, -2), target.flatten())
    log_weight, context = output.head.mixture(hidden)
    log_p = dense_log_prob(context, log_weight, output.head.weight, output.head.bias)  # (B, L, V)
    return F.nll_loss(log_p.flatten(0, -2), target.flatten())


def _check(_: str, values: Mapping[str, float]) -> dict[str, str]:
    losses = {name: value for name, value in values.items() if name != BODY}
    worst = max(losses.values()) - min(losses.values()) if losses else 0.0
    if not worst <= TOLERANCE:
        raise ValueError(f"all heads must have the same loss, got {losses}")
    return {}
