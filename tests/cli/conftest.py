"""A tiny trained run, and a command line in this process."""

import gc
import os
import random

import pytest

from highrank.cli.main import main
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.prepare import prepare_text
from highrank.data.vocabulary import Vocabulary
from highrank.training.log import MetricsLog
from highrank.training.session import open_session

WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a corpus called `tale` in `cache` and a finished run called `tiny`."""
    place = tmp_path_factory.mktemp("trained")
    rng = random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=9)) for _ in range(300))
    (place / "tale.txt").write_text("\n".join(lines))
    corpus = prepare_text(place / "tale.txt", cache=place / "cache").corpus
    config = RunConfig(
        corpus="tale",
        model=ModelConfig(embedding_size=8, options={"hidden_sizes": (12, 10)}),
        head=HeadConfig(num_components=3),
        batch=BatchConfig(batch_size=4, options={"bptt": 20}),
        train=StageConfig(optimizer="adamw", lr=1e-2, epochs=2, clip=1.0),
        valid_batch_size=2,
    )
    run = open_session(config, corpus, place / "tiny")
    run.go()
    # The log is locked as long as somebody has it open.
    del run
    gc.collect()
    return place


@pytest.fixture
def highrank(trained, monkeypatch, capsys):
    """Call a command in the folder of `trained`; returns code, output and errors."""
    monkeypatch.chdir(trained)
    monkeypatch.setenv("HIGHRANK_CACHE", str(trained / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["highrank", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def broken(trained, tmp_path):
    """A copy of the run, to be broken."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in (trained / "tiny").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


BREAKS = {
    "in training": (
        lambda run: MetricsLog(run / "metrics.jsonl"),
        "the run must not be in training, got ",
    ),
    "truncated": (
        lambda run: os.truncate(run / "model.safetensors", 1000),
        "model.safetensors must be a whole safetensors file, got ",
    ),
    "empty": (
        lambda run: os.truncate(run / "model.safetensors", 0),
        "model.safetensors must be a whole safetensors file, got ",
    ),
    "another number of tokens": (
        lambda run: Vocabulary(("<unk>", "<eos>", "the")).save(run / "vocabulary.json"),
        "vocabulary.json must be the run's vocabulary, of sha256 ",
    ),
    "other tokens": (
        lambda run: Vocabulary(tuple(map(str, range(14)))).save(run / "vocabulary.json"),
        "vocabulary.json must be the run's vocabulary, of sha256 ",
    ),
    "untrained": (
        lambda run: (run / "model.safetensors").unlink(),
        "the run must have finished an epoch, got ",
    ),
    "no run": (
        lambda run: (run / "config.json").unlink(),
        "a run must be a folder that `highrank train` made, got ",
    ),
}


@pytest.fixture(params=BREAKS)
def broken_run(request, broken):
    """A run that no command can use, and the message."""
    break_it, message = BREAKS[request.param]
    kept = break_it(broken)
    yield broken, message
    del kept
