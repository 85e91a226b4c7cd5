"""A tiny corpus and a tiny run."""

from types import SimpleNamespace

import numpy as np
import pytest

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data import senses
from highrank.data.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def corpus():
    """A corpus in memory, from an exact language: what `Run` needs of one."""
    language = senses(vocab_size=20, num_contexts=16, num_senses=6, seed=1)
    sizes = {"train": 1_500, "valid": 200, "test": 200}
    splits = {
        name: language.sample(size, seed, num_chains=1).tokens.ravel().astype(np.uint16)
        for seed, (name, size) in enumerate(sizes.items())
    }
    vocabulary = Vocabulary(("<eos>", *(f"w{i}" for i in range(1, 20))))
    return SimpleNamespace(vocabulary=vocabulary, split=splits.__getitem__)


@pytest.fixture
def config():
    return RunConfig(
        corpus="made in the tests",
        seed=3,
        model=ModelConfig(
            embedding_size=6,
            hidden_sizes=(8, 7),
            embedding_dropout=0.1,
            input_dropout=0.1,
            hidden_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
        ),
        head=HeadConfig(kind="mos", num_components=3, dropout=0.1),
        batch=BatchConfig(batch_size=4, bptt=12, bptt_max_delta=8),
        train=StageConfig(lr=1.0, epochs=3, switch_epoch=1, clip=1.0),
        finetune=StageConfig(optimizer="asgd", lr=1.0, epochs=2, clip=1.0),
        activation_penalty=0.1,
        temporal_penalty=0.1,
        valid_batch_size=2,
    )
