"""Have the components of a trained mixture parted, or do they all say the same?"""

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.components import component_report
from highrank.heads import MixtureOfSoftmaxes
from highrank.models.language_model import LanguageModel

# Components that tell less about the word, in nats, say nearly the same.
ALIKE = 0.01
# What the noise of growth gives by itself is about 0.03.
PARTED = 0.1


@torch.no_grad()
def specialisation(
    model: LanguageModel, words: NDArray[np.integer], num_contexts: int = 500
) -> float | None:
    """What the speaking component tells about the next word, in nats: `ComponentReport` has more.

    None for a head that is no mixture of softmaxes.

    Args:
        model: in evaluation mode.
        words: (T,), a text; its first words are read.
    """
    if not isinstance(model.head, MixtureOfSoftmaxes) or model.head.num_components == 1:
        return None
    tokens = torch.from_numpy(words[:num_contexts].astype(np.int64))[:, None]  # (T, 1)
    tokens = tokens.to(model.head.weight.device)
    hidden = model.backbone(tokens, model.initial_state(1)).hidden  # (T, 1, D)
    return component_report(model.head, hidden[:, 0], num_pair_contexts=1).specialisation
