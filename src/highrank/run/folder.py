"""The files of a run: their names, a new folder, and what it begins with."""

import json
from pathlib import Path

from highrank.config import RunConfig
from highrank.data.corpus import COUNTS_FILE, Corpus, CorpusLike, write_counts
from highrank.data.vocabulary import Vocabulary
from highrank.files import lock_file, write_atomically
from highrank.run.configuration import CONFIG_FILE, check_same_config, config_to_json, read_config
from highrank.run.corpus import RecordedCorpus, read_record, write_record

VOCABULARY_FILE, CORPUS_FILE = "vocabulary.json", "corpus.json"
MODEL_FILE, METRICS_FILE, CHECKPOINT_FILE = "model.safetensors", "metrics.jsonl", "trainer.pt"
FILES = (CONFIG_FILE, VOCABULARY_FILE, COUNTS_FILE, CORPUS_FILE, MODEL_FILE, CHECKPOINT_FILE)
# What a run may leave behind that was killed before it had begun.
FIRST_FILES = {
    name
    for file in (VOCABULARY_FILE, COUNTS_FILE, CONFIG_FILE)
    for name in (file, f".{file}.new")
    if name != CONFIG_FILE
}


def new_run(parent: Path, name: str) -> Path:
    """The first free folder runs/<name>-<n>, made."""
    n = 1
    while True:
        folder = parent / f"{name}-{n}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            n += 1
        else:
            return folder


def prepare_folder(folder: Path, config: RunConfig, corpus: CorpusLike) -> None:
    """Write what a run begins with; refuse a folder of another run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG_FILE
    if path.exists():
        _check_same(folder, config, corpus.vocabulary)
        return
    if strange := {file.name for file in folder.iterdir()} - FIRST_FILES:
        raise ValueError(
            f"the run's folder must be empty, got {folder} with {', '.join(sorted(strange))}"
        )
    write_atomically(folder / VOCABULARY_FILE, corpus.vocabulary.save)
    write_counts(folder, corpus.token_counts)
    text = json.dumps(config_to_json(config), indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def _check_same(folder: Path, config: RunConfig, vocabulary: Vocabulary) -> None:
    check_same_config(folder, read_config(folder), config)
    known = folder / VOCABULARY_FILE
    if Vocabulary.load(known) != vocabulary:
        raise ValueError(
            f"the corpus must have the run's vocabulary, got another than {known}: prepare "
            f"{config.corpus} as it was when the run began"
        )


def record_corpus(folder: Path, corpus: CorpusLike) -> None:
    """Keep with the run what its corpus is and where, unless it was made in memory."""
    if not isinstance(corpus, Corpus):
        return
    path = folder / CORPUS_FILE
    try:
        old = read_record(path, "")
        if (old.header, old.path) == (corpus.header, corpus.path.absolute()):
            return
    except ValueError:
        # A new run has none, and a damaged one can be replaced.
        pass
    write_record(path, corpus)


def read_corpus(folder: Path, config: RunConfig) -> RecordedCorpus:
    """The corpus of a run."""
    return read_record(folder / CORPUS_FILE, config.corpus)


def is_in_training(folder: Path) -> bool:
    """Whether a process has the run's log open to write."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return False
    with path.open() as file:
        return not lock_file(file.fileno(), is_shared=True)
