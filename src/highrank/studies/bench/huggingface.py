"""`bench hf`: a training step of a GPT-2 of transformers, with different output layers and losses.

The memory of a head is what a step needs beyond that of the body alone: GPT-2 small, whose 50,257
tokens share one embedding for input and output.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.environment import environment
from highrank.heads.base import MeasuredOutput
from highrank.heads.low_rank_mos import LowRankMixture
from highrank.heads.mixture import Mixture
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.upgrade import upgrade
from highrank.studies.bench import harness

BODY, PLAIN, OURS = "body alone", "softmax, transformers", "MoS, our loss"
SOFTMAX, DENSE = "softmax, our loss", "MoS, dense logits"
VARIANTS = (BODY, PLAIN, SOFTMAX, OURS, DENSE)
NUM_COMPONENTS, SEED = 4, 0
# Losses of layers that start alike may differ by so much.
TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class BodySize:
    """Of a GPT-2."""

    num_layers: int = 12
    hidden_size: int = 768
    vocab_size: int = 50_257
    num_tokens: int = 512


FULL, QUICK = BodySize(), BodySize(num_layers=2, num_tokens=128)
TINY = BodySize(num_layers=1, hidden_size=12, vocab_size=100, num_tokens=8)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceBenchResult(harness.BenchResult):
    size: BodySize
    num_components: int
    measurements: tuple[harness.Measurement, ...]
    head_bytes: dict[str, int | None]
    """Peak memory of a step minus that of the body alone, by variant; None if unknown."""
    dense_ratio: float | None
    """Memory of the mixture with dense logits, in multiples of ours: of the heads alone."""


class DenseMixture(LowRankMixture):
    """The mixture as it is usually written: logits of all components and tokens at once."""

    def _loss(self, features: Mixture, target: Any, *_: Any) -> MeasuredOutput:
        log_weight, context = features  # (..., K), (..., K, E)
        log_q = F.linear(context, self.weight, self.bias).log_softmax(-1)  # (..., K, V)
        log_p = (log_weight[..., None] + log_q).logsumexp(-2)  # (..., V)
        loss = F.nll_loss(log_p.flatten(0, -2), target.flatten())
        return MeasuredOutput(loss.detach(), loss, {})


def run_huggingface_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: harness.OnProgress = harness.silent
) -> HuggingFaceBenchResult:
    """Measure forward and backward of the body alone, of softmaxes and of mixtures.

    Args:
        quick: two blocks, a quarter of the tokens, and at most two rounds.
    """
    size, start = QUICK if quick else FULL, time.monotonic()
    variants = [
        harness.Variant(
            name=name, prepare=partial(step_of, name, size), warm_up=partial(step_of, name, TINY)
        )
        for name in VARIANTS
    ]
    measurements = harness.compare(
        variants,
        rounds=min(rounds, 2) if quick else rounds,
        baselines=(BODY, OURS),
        check=_check,
        on_progress=on_progress,
    )
    head_bytes = beyond_body({m.name: m.peak_bytes for m in measurements})
    ours, dense = head_bytes[OURS], head_bytes[DENSE]
    return HuggingFaceBenchResult(
        rounds=rounds,
        elapsed=time.monotonic() - start,
        environment=environment(),
        size=size,
        num_components=NUM_COMPONENTS,
        measurements=measurements,
        head_bytes=head_bytes,
        dense_ratio=dense / ours if ours and dense else None,
    )


def beyond_body(peaks: Mapping[str, int | None]) -> dict[str, int | None]:
    """What each variant needs beyond the body alone."""
    body = peaks[BODY]
    return {
        name: None if peak is None or body is None else max(0, peak - body)
        for name, peak in peaks.items()
        if name != BODY
    }


def step_of(name: str, size: BodySize) -> Callable[[], float]:
    """A function that does forward and backward, and returns the loss."""
    model = model_of(name, size).train()
    torch.manual_seed(SEED)
    tokens = torch.randint(size.vocab_size, (1, size.num_tokens))

    def step() -> float:
        model.zero_grad()
        loss = body_loss(model, tokens) if name == BODY else model(tokens, labels=tokens).loss
        loss.backward()
        return float(loss.item())

    return step


def model_of(name: str, size: BodySize) -> Any:
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
    kind = "softmax" if name == SOFTMAX else "mos"
    model = upgrade(model, kind, NUM_COMPONENTS)
    if name == DENSE:
        model.get_output_embeddings().head.__class__ = DenseMixture
    return model


def body_loss(model: Any, tokens: Tensor) -> Tensor:
    """Some number that needs all weights of the body."""
    loss: Tensor = model.base_model(tokens).last_hidden_state.square().mean()
    return loss


def _check(values: dict[str, Any]) -> dict[str, str]:
    losses = {name: value for name, value in values.items() if name != BODY}
    worst = max(losses.values()) - min(losses.values()) if losses else 0.0
    if not worst <= TOLERANCE:
        raise ValueError(f"all heads must have the same loss, got {losses}")
    return {}
