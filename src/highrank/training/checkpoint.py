"""Files that a training session keeps in its run's folder: the log, the best model, the checkpoint.

The checkpoint, `trainer.pt`, is all that a run needs to be resumed, in one file: tensors and plain
values, never objects. The shards of a model with `--shard full` are in a folder beside it.
"""

import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from highrank.config import RunConfig
from highrank.data.corpus import CorpusLike, split_sha256
from highrank.files import clear_temporaries, is_disk_full, write_atomically
from highrank.heads.bases.component import components_of
from highrank.models.tensors import content_sha256, write_tensors
from highrank.run.configuration import check_same_config, config_from_json, config_to_json
from highrank.run.folder import (
    CHECKPOINT_FILE,
    FILES,
    METRICS_FILE,
    MODEL_FILE,
    prepare_folder,
    record_corpus,
)
from highrank.training.distributed_checkpoint import clear_shards, read_shards, write_shards
from highrank.training.log import MetricsLog, SilentLog
from highrank.training.world import World, is_lost

FORMAT = 5
# Enough of a log to find out whether the run had begun.
FIRST_BYTES = 10_000


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    content = {"format": FORMAT, "sha256": content_sha256(state), **state}
    with _explaining_failures(path):
        write_atomically(path, lambda temporary: _save(content, temporary))


def _save(content: dict[str, Any], path: Path) -> None:
    # To a file that Python has opened: torch's own hides why it could not be written.
    with path.open("wb") as file:
        torch.save(content, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote; a file that holds anything else is refused."""
    try:
        _check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = state.pop("format") if isinstance(state, dict) else type(state).__name__
        if found != FORMAT:
            raise ValueError(f"one of format {found}: start a new run")
        if state.pop("sha256") != content_sha256(state):
            raise ValueError("a damaged one: its content does not have the hash in it")
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} must be a checkpoint of highrank, of format {FORMAT}, got {reason}"
        ) from None
    assert isinstance(state, dict)
    return state


def _check_archive(path: Path) -> None:
    """Raise unless all members match their CRC and fit into the file: torch checks neither."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        is_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not is_stored or sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("members of another size than theirs in the file")
        if (name := archive.testzip()) is not None:
            raise ValueError(f"a damaged {name}")


def save_model(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Weights alone, as safetensors: what `highrank.load` reads."""
    with _explaining_failures(path):
        write_tensors(path, state)


@contextmanager
def _explaining_failures(path: Path) -> Iterator[None]:
    """Turn errors of torch and safetensors, too, into one that tells what is lost."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RuntimeError) and is_lost(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        text = f"{path} could not be written: {reason}."
        if is_disk_full(error):
            text = f"The disk is full: {path} was not written."
        hope = "The run has not begun: the same command begins it once there is space."
        if path.with_name(CHECKPOINT_FILE).exists():
            hope = "The last checkpoint is whole: --resume continues from it once there is space."
        raise OSError(f"{text} {hope}") from None


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
        # safetensors writes under such names first.
        for path in self.path.glob(".tmp??????"):
            path.unlink()
        has_begun = (self.path / MODEL_FILE).exists() or self.log.whole_lines(FIRST_BYTES)
        if has_begun and not self.checkpoint_path.exists():
            # To begin anew would lose what there is.
            raise ValueError(f"{self.checkpoint_path} is missing: the run cannot be resumed")

    def read_checkpoint(self, device: str) -> dict[str, Any] | None:
        """The checkpoint, of this configuration and corpus; None if the run has not begun.

        Args:
            device: of the model's shards.
        """
        if not self.checkpoint_path.exists():
            return None
        # A file that is refused is refused by the first process: all would say the same.
        state = self.world.first_then_others(self._load_checkpoint)
        return read_shards(self.path, state, self.world, device)

    def _load_checkpoint(self) -> dict[str, Any]:
        path = self.checkpoint_path
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

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint, with what it must fit to and the log so far."""
        content = {
            **self._without_shards(state),
            "config": config_to_json(self.config),
            "metrics": self.log.text,
            "corpus_sha256": self.corpus_sha256,
        }

        def save_first() -> None:
            save_checkpoint(self.checkpoint_path, content)
            clear_shards(self.path, content)

        self.world.first(save_first)

    def _without_shards(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state as the first process saves it: shards are written or gathered."""
        if self.world.shard != "full":
            whole: dict[str, Any] = self.world.whole(state)
            return whole
        with _explaining_failures(self.checkpoint_path):
            return write_shards(self.path, state, self.world)

    def save_best(self, state: dict[str, Tensor]) -> None:
        """Write the weights of the best model."""
        whole = self.world.whole(state)
        self.world.first(lambda: save_model(self.path / MODEL_FILE, whole))

    def fit(self, model: nn.Module, corpus: CorpusLike) -> tuple[float, float]:
        """Let components prepare what they need of the training split, and keep it; once.

        Returns the seconds that it took, and those of the processor.
        """
        components = components_of(model)
        if not components:
            return 0.0, 0.0
        start, cpu_start = time.monotonic(), time.process_time()

        def fit_first() -> None:
            for component in components:
                component.fit(corpus.split("train"), corpus.token_counts)
                component.save_data(self.path)

        if not self.checkpoint_path.exists():
            self.world.first(fit_first)
        for component in components:
            component.load_data(self.path)
        return time.monotonic() - start, time.process_time() - cpu_start

    def record(self, corpus: CorpusLike) -> None:
        """Keep with the run what its corpus is, and where."""
        self.world.first(lambda: record_corpus(self.path, corpus))
