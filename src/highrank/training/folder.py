"""What a training session keeps in its run's folder: the log, the checkpoint, the best model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from highrank.config import RunConfig
from highrank.data.corpus import CorpusLike, split_sha256
from highrank.files import clear_temporaries
from highrank.run.configuration import check_same_config, config_from_json, config_to_json
from highrank.run.folder import (
    CHECKPOINT_FILE,
    FILES,
    METRICS_FILE,
    MODEL_FILE,
    prepare_folder,
    record_corpus,
)
from highrank.training.checkpoint import load_checkpoint, save_checkpoint, save_model
from highrank.training.log import MetricsLog, SilentLog
from highrank.training.world import World

# Enough of a log to find out whether the run had begun.
FIRST_BYTES = 10_000


class TrainingFolder:
    """A run's folder that a session has made or found, and that no other may train in.

    Only the first process of a world writes.
    """

    def __init__(self, path: Path, config: RunConfig, corpus: CorpusLike, world: World) -> None:
        self.path, self.config, self.world = path, config, world
        self.corpus_sha256 = {name: split_sha256(corpus, name) for name in ("train", "valid")}
        self.log: MetricsLog | SilentLog = SilentLog()
        world.first(lambda: self._open(corpus))

    @property
    def checkpoint_path(self) -> Path:
        return self.path / CHECKPOINT_FILE

    def _open(self, corpus: CorpusLike) -> None:
        prepare_folder(self.path, self.config, corpus)
        self.log = MetricsLog(self.path / METRICS_FILE)
        clear_temporaries(self.path / name for name in FILES)
        has_begun = (self.path / MODEL_FILE).exists() or self.log.whole_lines(FIRST_BYTES)
        if has_begun and not self.checkpoint_path.exists():
            # To begin anew would lose what there is.
            raise ValueError(f"{self.checkpoint_path} is missing: the run cannot be resumed")

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint, of this configuration and corpus; None if the run has not begun."""
        path = self.checkpoint_path
        if not path.exists():
            return None
        state = load_checkpoint(path)
        try:
            config = config_from_json(state.get("config"))
        except ValueError as error:
            raise ValueError(f"{path} must have a run's configuration: {error}") from None
        check_same_config(self.path, config, self.config)
        for name, digest in self.corpus_sha256.items():
            if state.get("corpus_sha256", {}).get(name) != digest:
                raise ValueError(
                    "the corpus must be the one that the run began with, got another "
                    f"{name} split: prepare {self.config.corpus} as it was"
                )
        return state

    @contextmanager
    def explaining_foreign_checkpoints(self) -> Iterator[None]:
        """Name the file where a checkpoint's content does not fit."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            path = self.checkpoint_path
            raise ValueError(f"{path} must be a checkpoint of this run, got {reason}") from None

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, with what it must fit to and the log so far."""
        content = {
            **state,
            "config": config_to_json(self.config),
            "metrics": self.log.text,
            "corpus_sha256": self.corpus_sha256,
        }
        self.world.first(lambda: save_checkpoint(self.checkpoint_path, content))

    def save_best(self, state: dict[str, Tensor]) -> None:
        """Write the weights of the best model."""
        self.world.first(lambda: save_model(self.path / MODEL_FILE, state))

    def record(self, corpus: CorpusLike) -> None:
        """Keep with the run what its corpus is, and where."""
        self.world.first(lambda: record_corpus(self.path, corpus))
