"""Models with different heads, trained one after the other in one folder: timed, saved, resumed."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, TypeVar

import torch

from highrank.config import StageConfig
from highrank.data.batches import Batches
from highrank.files import (
    checked,
    clear_temporaries,
    from_json,
    new_folder,
    read_json,
    write_atomically,
)
from highrank.heads import Softmax
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.trainable import TrainableModel
from highrank.integrations.huggingface.upgrade import to_softmax
from highrank.progress import OnProgress
from highrank.training.checkpoint import load_checkpoint, save_checkpoint
from highrank.training.log import MetricsLog
from highrank.training.signals import Stopped, listening, stop
from highrank.training.trainer import Diverged, Trainer

SETTINGS_FILE, TIMES_FILE, LOCK_FILE = "settings.json", "step_times.json", "lock"
CHECKPOINT_FILE, VARIANT_FILE = "trainer.pt", "variant.json"
SECONDS_BETWEEN_CHECKPOINTS = 300.0
# To measure the time of a step: rounds, in which the variants take turns.
NUM_ROUNDS = 3

Result = TypeVar("Result")


class VariantTraining(ABC):
    """A model in training. The same number of steps gives the same numbers, interrupted or not.

    Args:
        model: with the head of its variant; all of it may be frozen.
        batches: of the training split.
        check: called often, where the work may end; raises `Stopped` if it is to.
    """

    point_type: ClassVar[type]
    """A dataclass: what an evaluation finds, and `step`."""

    def __init__(
        self,
        model: TrainableModel,
        variant: str,
        seed: int,
        *,
        batches: Batches,
        stage: StageConfig,
        check: Callable[[], None],
    ) -> None:
        self.model, self.variant, self.seed = model, variant, seed
        self.batches, self.stage, self.check = batches, stage, check
        # None if there is nothing to train.
        has_trained = any(p.requires_grad for p in model.parameters())
        self.trainer = Trainer(model, stage) if has_trained else None
        self.losses: list[float] = []
        """Losses of the steps since the last evaluation."""
        self.points: list[Any] = []
        torch.manual_seed(seed)

    @property
    @abstractmethod
    def fraction(self) -> float:
        """The fraction of the work that is done."""

    @property
    @abstractmethod
    def is_complete(self) -> bool: ...

    @abstractmethod
    def advance(self, on_progress: OnProgress) -> None:
        """Do what comes next: a step, or an evaluation."""

    @abstractmethod
    def result(self) -> Any:
        """A dataclass of all that is known at the end."""

    @property
    def num_steps(self) -> int:
        return 0 if self.trainer is None else self.trainer.num_steps

    @property
    def is_measured(self) -> bool:
        """Whether there is a point of the present step."""
        return bool(self.points) and self.points[-1].step == self.num_steps

    @property
    def train_nats(self) -> float | None:
        """Mean loss of the steps since the last evaluation; None if there were none."""
        return fmean(self.losses) if self.losses else None

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has its averaged weights."""
        return nullcontext() if self.trainer is None else self.trainer.averaged()

    def text(self) -> str:
        """Where the training is, for a progress bar."""
        text = f"{self.variant}, seed {self.seed}, step {self.num_steps}"
        if not self.points:
            return text
        return f"{text}: held-out {self.points[-1].valid_nats:.4f} nats/token"

    def run(self, path: Path, on_progress: OnProgress) -> None:
        """Train to the end; where `check` stops it, save first.

        Args:
            path: of the checkpoint, from which it resumes if that is a file.
        """
        if path.is_file():
            self.load_state_dict(load_checkpoint(path))
        saved = time.monotonic()
        try:
            while not self.is_complete:
                self.check()
                on_progress(self.fraction, self.text())
                self.advance(on_progress)
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    save_checkpoint(path, self.state_dict())
                    saved = time.monotonic()
        except Stopped:
            save_checkpoint(path, self.state_dict())
            raise
        save_checkpoint(path, self.state_dict())

    def train_step(self) -> float:
        """One update; returns its seconds."""
        assert self.trainer is not None
        start = time.perf_counter()
        if self.batches.is_epoch_over:
            self.batches.start_epoch()
        try:
            self.losses.append(self.trainer.step(next(self.batches), self.fraction))
        except Diverged as error:
            raise ValueError(
                f"{self.variant}, seed {self.seed}, diverged at step {self.num_steps + 1}: "
                f"{error}. Begin anew with a lower --lr than {self.stage.lr:g}"
            ) from None
        return time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what follows, as tensors and plain values."""
        return {
            "trainer": None if self.trainer is None else self.trainer.state_dict(),
            "batches": self.batches.state_dict(),
            "losses": self.losses,
            "points": json.dumps([asdict(point) for point in self.points]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.trainer is not None:
            self.trainer.load_state_dict(state["trainer"])
        self.batches.load_state_dict(state["batches"])
        self.losses = state["losses"]
        self.points = [from_json(self.point_type, point) for point in json.loads(state["points"])]


def is_evaluated(step: int, every: int, count: int) -> bool:
    """Every so many steps; a power of two above it once `count` such steps are fewer than `step`.

    With 16 and 4: every 16th step, from the 128th on every 32nd, from the 256th on every 64th.
    """
    return step % max(every, 1 << max(0, (step // count).bit_length() - 1)) == 0


def step_times(
    variants: Iterable[str],
    start: Callable[[str], VariantTraining],
    folder: Path,
    on_progress: OnProgress,
    num_steps: int,
) -> dict[str, float | None]:
    """Median seconds of a training step of each variant; None if it has nothing to train.

    They take turns, so that all have the same share of what else the machine does, and stay as they
    were measured when the work in the folder began.

    Args:
        start: makes a training of the variant.
        num_steps: in each turn; the first does not count.
    """
    path = folder / TIMES_FILE
    if not path.is_file():
        found: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(NUM_ROUNDS):
            for variant, times in found.items():
                training = start(variant)
                training.check()
                on_progress(0.0, f"measuring a step of {variant}")
                if training.trainer is not None:
                    times += [training.train_step() for _ in range(num_steps)][1:]
        write_json(path, {name: median(times) if times else None for name, times in found.items()})
    return checked(dict[str, float | None], read_json(path), TIMES_FILE)  # type: ignore[no-any-return]


def train_variants(
    wanted: Collection[tuple[str, int]],
    start: Callable[[str, int], VariantTraining],
    folder: Path,
    result_type: type[Result],
    tokenizer: Any,
    on_progress: OnProgress,
) -> list[Result]:
    """The results of all models; those in the folder are not trained.

    Args:
        wanted: variants and seeds.
        start: makes the training of one of them.
        tokenizer: saved beside each model.
    """
    found: list[Result] = []
    for variant, seed in wanted:
        place = folder / f"{variant.replace(':', '-')}-{seed}"
        checkpoint = folder / f"{place.name}-{CHECKPOINT_FILE}"
        if not (place / VARIANT_FILE).is_file():
            training = start(variant, seed)
            training.run(
                checkpoint,
                lambda part, text: on_progress((len(found) + part) / len(wanted), text),
            )
            save_variant(training, tokenizer, place)
        # Here, because a process may have been killed after it saved the model.
        checkpoint.unlink(missing_ok=True)
        found.append(from_json(result_type, read_json(place / VARIANT_FILE)))
    return found


def save_variant(training: VariantTraining, tokenizer: Any, folder: Path) -> None:
    """Write a folder for `from_pretrained`: averaged weights, one softmax as a plain model."""
    model = training.model.model
    with quiet_transformers("save a model"), new_folder(folder, replace=True) as temporary:
        with training.averaged():
            saved = to_softmax(model) if isinstance(training.model.head, Softmax) else model
            saved.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / VARIANT_FILE, asdict(training.result()))


@contextmanager
def open_folder(
    folder: Path, content: Mapping[str, Any], may_change: Collection[str] = ()
) -> Iterator[Callable[[], None]]:
    """Hold a folder in which no other process may train; yields what raises `Stopped` on a signal.

    Args:
        content, may_change: as of `prepare_folder`.
    """
    signals: list[int] = []

    def check() -> None:
        if signals:
            stop(signals[0])

    prepare_folder(folder, content, may_change)
    with closing(MetricsLog(folder / LOCK_FILE)), listening(signals.append):
        yield check


def prepare_folder(
    folder: Path, content: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Write what decides the numbers; refuse a folder that has something else.

    Args:
        may_change: keys of the content that need not be the same.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the folder must be new or a finetuning, got the file {folder}")
    path = folder / SETTINGS_FILE
    if path.exists():
        found, wanted = read_json(path), json.loads(json.dumps(content))
        for name, value in wanted.items():
            if name not in may_change and found.get(name) != value:
                raise ValueError(
                    f"{folder} must be new or have the same settings, got "
                    f"{name.replace('_', '-')} {found.get(name)}, not {value}: choose another --out"
                )
        return
    folder.mkdir(parents=True, exist_ok=True)
    clear_temporaries([path])
    if any(folder.iterdir()):
        raise ValueError(f"the folder must be new or a finetuning, got {folder} with other files")
    write_json(path, content)


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
