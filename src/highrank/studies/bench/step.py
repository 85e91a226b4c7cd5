"""`bench step`: a training step of the paper's models.

It is what the training loop does with a window: forward, penalties, backward, clipping, SGD.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from highrank import presets
from highrank.build import build_model
from highrank.data.batches import Batch
from highrank.heads import Head, HeadOutput, MixtureOfSoftmaxes
from highrank.progress import OnProgress
from highrank.studies.bench import harness
from highrank.studies.bench.baselines import original_log_prob
from highrank.training.trainer import Trainer

VOCAB_SIZE, SEED = 10_000, 0
ORIGINAL = "ptb-mos, original head"
# The preset of each variant.
PRESETS = {"ptb-mos": "ptb-mos", ORIGINAL: "ptb-mos", "ptb-softmax": "ptb-softmax"}


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
