"""`bench step`: one training step of the paper's models, with our head and with the original one.

A step is what the training loop does with a window: forward, penalties, backward, clipping, SGD.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from highrank import presets
from highrank.build import build_model
from highrank.data.batches import Batch
from highrank.environment import environment
from highrank.heads import Mixture, MixtureOfSoftmaxes
from highrank.heads.bases.head import Head, MeasuredOutput
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import EPSILON
from highrank.training.trainer import Trainer

VOCAB_SIZE = 10_000
SEED = 0
# A preset, and whether it has the original head.
STEPS = {
    "ptb-mos": ("ptb-mos", False),
    "ptb-mos, original head": ("ptb-mos", True),
    "ptb-softmax": ("ptb-softmax", False),
}


@dataclass(frozen=True, kw_only=True)
class StepBenchResult(harness.BenchResult):
    num_tokens: dict[str, int]
    """Of a step, by variant."""
    measurements: tuple[harness.Measurement, ...]


class OriginalMixture(MixtureOfSoftmaxes):
    """The head of the paper's code: every K × V probability, an epsilon before the logarithm."""

    def _loss(self, features: Mixture, target: Any, *_: Any) -> MeasuredOutput:
        log_weight, context = features  # (..., K), (..., K, E)
        q = F.linear(context, self.weight, self.bias).softmax(-1)  # (..., K, V)
        p = (log_weight.exp()[..., None] * q).sum(-2)  # (..., V)
        log_p = (p + EPSILON).log()
        output = log_p.gather(-1, target[..., None]).squeeze(-1)
        return MeasuredOutput(output, -output.mean(), {})


def run_step_bench(
    *, rounds: int = 5, quick: bool = False, on_progress: harness.OnProgress = harness.silent
) -> StepBenchResult:
    """Measure a step of ptb-mos, of ptb-mos with the original head, and of ptb-softmax.

    Args:
        quick: windows of 10 tokens instead of 70.
    """
    window, start = 10 if quick else 70, time.monotonic()
    variants = [
        harness.Variant(
            name=name, prepare=partial(step_of, *of, window), warm_up=partial(step_of, *of, 2)
        )
        for name, of in STEPS.items()
    ]
    measurements = harness.compare(
        variants, rounds=rounds, baselines=("ptb-mos",), on_progress=on_progress
    )
    sizes = {name: presets.get(preset).batch.batch_size for name, (preset, _) in STEPS.items()}
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
        model.head = original_head(model.head)
        model.tie_again()
    # The same weights in every round.
    trainer = Trainer(model, replace(config.train, lr=1e-30))
    tokens = torch.randint(VOCAB_SIZE, (window + 1, config.batch.batch_size))  # (T + 1, B)
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
