"""What the tests of dynamic evaluation share: a small model whose updates matter, and its texts."""

import numpy as np
import pytest
from torch import nn

from highrank.evaluation.statistics import gradient_statistics
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel

V, SEGMENT = 17, 5


def build(dropout):
    backbone = AWDLSTM(
        V,
        6,
        (9, 8),
        embedding_dropout=dropout,
        input_dropout=dropout,
        hidden_dropout=dropout,
        output_dropout=dropout,
        weight_dropout=dropout,
    )
    model = LanguageModel(backbone, MixtureOfSoftmaxes(8, V, 3, 6, dropout=dropout))
    # Larger than a fresh model's, so that updates matter.
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.double().eval()


@pytest.fixture
def model():
    return build(dropout=0.0)


@pytest.fixture
def model_with_dropout():
    return build(dropout=0.5)


@pytest.fixture
def train():
    return np.random.default_rng(1).integers(V, size=2 * 47)


@pytest.fixture
def text():
    return np.random.default_rng(2).integers(V, size=50 * SEGMENT - 1)


@pytest.fixture
def statistics(model, train):
    return gradient_statistics(model, train, batch_size=2)
