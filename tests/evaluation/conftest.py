"""A small model whose updates matter, its tokens, and a run as it is loaded."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from highrank.build import build_model
from highrank.config import HeadConfig, ModelConfig, RunConfig
from highrank.data.prepare import prepare_text
from highrank.evaluation.dynamic import gradient_statistics
from highrank.heads import MixtureOfSoftmaxes
from highrank.models import AWDLSTM, LanguageModel
from highrank.run.loading import LoadedRun

V, SEGMENT = 17, 5


@pytest.fixture
def model():
    """In training mode it drops out; in evaluation mode, as it is given, it does not."""
    dropouts = ("embedding", "input", "hidden", "output", "weight")
    backbone = AWDLSTM(V, 6, (9, 8), **{f"{name}_dropout": 0.5 for name in dropouts})
    model = LanguageModel(backbone, MixtureOfSoftmaxes(8, V, 3, 6, dropout=0.5))
    # Larger than a fresh model's, so that updates matter.
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.double().eval()


@pytest.fixture
def train():
    return np.random.default_rng(1).integers(V, size=2 * 47)


@pytest.fixture
def text():
    return np.random.default_rng(2).integers(V, size=50 * SEGMENT - 1)


@pytest.fixture
def statistics(model, train):
    return gradient_statistics(model, train, batch_size=2)


@pytest.fixture
def loaded(tmp_path):
    """A run that was never trained, on a corpus of eight words."""
    rng = random.Random(0)
    words = ["the", "a", "cat", "dog", "saw", "old", "small", "slept"]
    lines = (" ".join(rng.choices(words, k=9)) for _ in range(150))
    (tmp_path / "tale.txt").write_text("\n".join(lines))
    corpus = prepare_text(tmp_path / "tale.txt", cache=tmp_path / "cache").corpus
    config = RunConfig(
        corpus="tale",
        model=ModelConfig(embedding_size=6, options={"hidden_sizes": (9, 8)}),
        head=HeadConfig(num_components=3),
        valid_batch_size=2,
    )
    torch.manual_seed(0)
    model = build_model(config, len(corpus.vocabulary)).eval()
    return LoadedRun(tmp_path, config, corpus, model, corpus.vocabulary, "12")
