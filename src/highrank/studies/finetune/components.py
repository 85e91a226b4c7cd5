"""The components of a model's mixture on the held-out text: how far apart, and how many of them."""

from itertools import combinations
from statistics import fmean
from typing import Any

import torch

from highrank.analysis.components import COLLAPSED, ComponentReport, component_report
from highrank.heads import MixtureHead
from highrank.integrations.huggingface.output_layer import run
from highrank.studies.finetune.result import Components
from highrank.studies.finetune.text import Blocks

NUM_CONTEXTS, NUM_BLOCKS = 256, 8


@torch.no_grad()
def component_state(model: Any, blocks: Blocks) -> Components | None:
    """On contexts that are spread over the first blocks; None for a softmax."""
    output = model.get_output_embeddings()
    head = output.head
    if not isinstance(head, MixtureHead) or head.num_components < 2:
        return None
    # No position reaches the head.
    hidden, _ = run(model, blocks.rows[:NUM_BLOCKS], type(model).__name__, lambda h: h[:, :0])
    states = hidden.flatten(0, 1).float() * output.scale  # (n, D)
    spacing = max(1, len(states) // NUM_CONTEXTS)
    report = component_report(head, states[spacing - 1 :: spacing], num_pair_contexts=NUM_CONTEXTS)
    pairs = list(combinations(range(head.num_components), 2))
    return Components(
        divergence=fmean(report.pair_divergence[i][j] for i, j in pairs),
        num_collapsed=num_collapsed(report),
        num_dead=report.num_dead,
        specialisation=report.specialisation,
        gate_information=report.gate_information,
        state=str(report.state),
    )


def num_collapsed(report: ComponentReport) -> int:
    """How many components could be left out: each predicts as one does that is kept."""
    kept: list[int] = []
    for k, divergences in enumerate(report.pair_divergence):
        if all(divergences[j] >= COLLAPSED for j in kept):
            kept.append(k)
    return len(report.pair_divergence) - len(kept)
