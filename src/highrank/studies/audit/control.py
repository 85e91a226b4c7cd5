"""The control of ranks, divergence and mixture: what the same head has with random weights.

Where random weights have as much of something, it says nothing about what was learned. T contexts,
D hidden size.
"""

import torch
from torch import Tensor

from highrank.analysis.components import component_report
from highrank.analysis.divergence import expected_divergence
from highrank.analysis.rank import measure_ranks
from highrank.studies.audit.layer import Layer, OnProgress, Plan, compute_spectra
from highrank.studies.audit.result import Control

DESCRIPTION = (
    "the same head with random weights, each tensor normal with its own mean and standard "
    "deviation, on the model's own hidden states"
)
# Of fewer contexts all are taken.
MIN_CONTEXTS = 8


def random_control(layer: Layer, hidden: Tensor, plan: Plan, on_progress: OnProgress) -> Control:
    """The head with random weights on the first of the hidden states (T, D).

    Args:
        plan: how the model's own spectrum was computed.
    """
    T, random = len(hidden), layer.randomised()
    if plan.method != "linear" and T >= MIN_CONTEXTS:
        T //= 4
    first = hidden[:T]
    (spectrum,) = compute_spectra(random, first, plan, (), on_progress)
    mixture = None
    if random.mixture is not None:
        mixture = component_report(random.mixture, first, num_pair_contexts=1)
    return Control(
        description=DESCRIPTION,
        num_contexts=T,
        measures=measure_ranks(spectrum),
        divergence=expected_divergence(random.log_probs(first, torch.float32)).nats,
        specialisation=None if mixture is None else mixture.specialisation,
    )
