"""`bench step`: one training step of the paper's models, with our head and with the original one.

A step is what the training loop does with a window: forward, penalties, backward, clipping, SGD.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from highrank import presets
from highrank.build import build_model
from highrank.config import RunConfig
from highrank.environment import Environment, environment
from highrank.heads import HeadOutput, Mixture, MixtureOfSoftmaxes
from highrank.studies.bench.harness import Measurement, OnProgress, Variant, compare
from highrank.training.penalties import activation_penalties

VOCAB_SIZE = 10_000
EPSILON = 1e-8
SEED = 0


@dataclass(frozen=True, kw_only=True)
class StepBenchResult:
    rounds: int
    elapsed: float
    """Seconds."""
    num_tokens: dict[str, int]
    """Of a step, by variant."""
    environment: Environment
    measurements: tuple[Measurement, ...]


class OriginalMixture(MixtureOfSoftmaxes):
    """The head of the paper's code: every K × V probability, an epsilon before the logarithm."""

    def _loss(
        self, features: Mixture, target: Tensor, reduction: str, ignore_index: int
    ) -> HeadOutput:
        log_weight, context = features  # (..., K), (..., K, E)
        q = torch.nn.functional.linear(context, self.weight, self.bias).softmax(-1)  # (..., K, V)
        p = (log_weight.exp()[..., None] * q).sum(-2)  # (..., V)
        log_p = (p + EPSILON).log()
        output = log_p.gather(-1, target[..., None]).squeeze(-1)
        return HeadOutput(output, -output.mean())


def run_step_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: OnProgress | None = None
) -> StepBenchResult:
    """Measure a step of ptb-mos, of ptb-mos with the original head, and of ptb-softmax.

    Args:
        quick: windows of 10 tokens instead of 70.
    """
    window, start = 10 if quick else 70, time.monotonic()
    names = {
        "ptb-mos": "ptb-mos",
        "ptb-mos, original head": "ptb-mos",
        "ptb-softmax": "ptb-softmax",
    }
    variants = [
        Variant(
            name=name,
            prepare=partial(step_of, preset, "original" in name, window),
            warm_up=partial(step_of, preset, "original" in name, 2),
        )
        for name, preset in names.items()
    ]
    measurements = compare(variants, rounds=rounds, baselines=("ptb-mos",), on_progress=on_progress)
    sizes = {name: presets.get(preset).batch.batch_size for name, preset in names.items()}
    return StepBenchResult(
        rounds=rounds,
        elapsed=time.monotonic() - start,
        num_tokens={name: size * window for name, size in sizes.items()},
        environment=environment(),
        measurements=measurements,
    )


def step_of(preset: str, is_original: bool, window: int) -> Callable[[], float]:
    """A function that does one step, and returns its loss before the update."""
    config = presets.get(preset)
    torch.manual_seed(SEED)
    model = build_model(config, VOCAB_SIZE)
    if is_original:
        model.head.__class__ = OriginalMixture
    words = torch.randint(VOCAB_SIZE, (window + 1, config.batch.batch_size))  # (T + 1, B)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    state = model.initial_state(config.batch.batch_size)

    def step() -> float:
        # The same masks for all: they are not what is compared.
        torch.manual_seed(SEED)
        model.train()
        optimizer.zero_grad()
        out = model(words[:-1], words[1:], state)
        (out.loss + _penalties(config, out.hidden, out.raw)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
        optimizer.step()
        return float(out.loss.item())

    return step


def _penalties(config: RunConfig, hidden: Tensor, raw: Tensor) -> Tensor:
    return activation_penalties(hidden, raw, config.activation_penalty, config.temporal_penalty)
