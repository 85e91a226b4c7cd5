"""A tiny trained run, and its export."""

import random

import pytest

import highrank
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.prepare import prepare_text
from highrank.run.loading import load_run
from highrank.training.session import open_session

WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"]
pytest.importorskip("transformers")


@pytest.fixture(autouse=True, scope="session")
def registered():
    highrank.register()


@pytest.fixture(scope="session")
def tale(tmp_path_factory):
    """A prepared corpus of words."""
    place = tmp_path_factory.mktemp("export")
    rng = random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(120))
    (place / "tale.txt").write_text("\n".join(lines))
    return prepare_text(place / "tale.txt", cache=place / "cache").corpus


@pytest.fixture(scope="session")
def run_of(tale, tmp_path_factory):
    """A function that trains a run with a head and loads it."""

    def train(kind, **options):
        config = RunConfig(
            corpus=str(tale.path),
            model=ModelConfig(embedding_size=8, options={"hidden_sizes": (10, 8)}),
            head=HeadConfig(kind=kind, num_components=2, options=options),
            batch=BatchConfig(batch_size=8, options={"bptt": 20}),
            train=StageConfig(optimizer="adamw", lr=1e-2, epochs=1, clip=1.0),
            valid_batch_size=2,
        )
        folder = tmp_path_factory.mktemp("runs") / kind
        open_session(config, tale, folder).go()
        return load_run(folder)

    return train


@pytest.fixture(scope="session")
def loaded(run_of):
    return run_of("mos")


@pytest.fixture(scope="session")
def exported(loaded, tmp_path_factory):
    """The folder of the export of `loaded`."""
    from highrank.integrations.export.folder import export_run

    return export_run(loaded, tmp_path_factory.mktemp("exports") / "mos").folder
