"""Upgrade a pretrained model, train it, and train the same model as a softmax beside it."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.contrasts import Contrast, analyse
from highrank.data.batches import Blocks
from highrank.data.text import read_text, split_text
from highrank.environment import Environment, environment
from highrank.files import (
    checked,
    clear_temporaries,
    from_json,
    new_folder,
    read_json,
    write_atomically,
)
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.reader import HuggingFaceModel
from highrank.integrations.huggingface.upgrade import to_softmax, upgrade
from highrank.progress import OnProgress
from highrank.studies.finetune.settings import BASELINE, CONTROL, Settings
from highrank.studies.finetune.training import Task, TrainedVariant, VariantTraining
from highrank.training.log import MetricsLog
from highrank.training.signals import listening, stop

SETTINGS_FILE, TIMES_FILE, LOCK_FILE = "settings.json", "step_times.json", "lock"
CHECKPOINT_FILE, VARIANT_FILE = "trainer.pt", "variant.json"
FORMAT, VERSION = "highrank finetuning", 2
# To measure the time of a step: rounds, and steps of each, of which the first does not count.
NUM_ROUNDS, NUM_STEPS = 3, 3


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds."""

    value: float
    error: float | None
    """Standard error; None for one seed."""

    @staticmethod
    def over(values: NDArray[np.float64]) -> "Mean":
        from scipy.stats import sem  # type: ignore[import-untyped]

        error = float(sem(values)) if len(values) > 1 else None
        return Mean(value=fmean(values), error=error)


@dataclass(frozen=True, kw_only=True)
class Row:
    variant: str
    step: float
    """Steps that count."""
    nats: Mean
    """Loss of a held-out token."""
    gain: Mean | None
    """Nats below the baseline of the same seed; None for the baseline itself."""
    contrast: Contrast | None
    """Loss minus that of the baseline; None for the baseline itself, or with one seed."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The best mixture against the best of the controls, by their mean losses."""

    variant: str
    """The mixture; the linear control if there is none."""
    control: str
    gain: Mean
    """Nats below the control of the same seed."""
    contrast: Contrast | None
    """Loss minus the control's, corrected for all mixtures and controls; None with one seed."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    at: float
    """Tokens, or seconds."""
    rows: tuple[Row, ...]
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class FinetuneResult:
    settings: Settings
    num_train_tokens: int
    """Tokens of the text; each epoch has all of them."""
    num_valid_tokens: int
    """Tokens that are predicted in an evaluation."""
    bytes_per_token: float
    """In the held-out text: bits per byte are nats / log 2 / this."""
    train_sha256: str
    valid_sha256: str
    """Hashes of the token ids."""
    variants: tuple[TrainedVariant, ...]
    step_seconds: dict[str, float | None]
    """Time of a step of each variant, measured in turns before the training."""
    equal_tokens: Comparison
    equal_time: Comparison
    environment: Environment


def select_variant(models: Sequence[TrainedVariant], variant: str) -> list[TrainedVariant]:
    return [model for model in models if model.variant == variant]


def compare(models: Sequence[TrainedVariant], costs: Mapping[str, float | None]) -> Comparison:
    """Losses at a cost that every model has had in training.

    Args:
        costs: tokens or seconds of a step of each variant; None if it has nothing to train. With
            seconds that were measured in turns, what else the machine did while one of the models
            was trained does not matter.
    """
    at = min(
        model.num_steps * cost
        for model in models
        if model.num_trained > 0 and (cost := costs[model.variant]) is not None
    )
    steps = {variant: 0.0 if cost is None else at / cost for variant, cost in costs.items()}
    variants = list(dict.fromkeys(model.variant for model in models))
    losses = np.array(
        [[one.nats_at(steps[name]) for one in select_variant(models, name)] for name in variants]
    )  # (C, S)
    baseline = variants.index(BASELINE)
    others = [i for i in range(len(variants)) if i != baseline]
    found = analyse(losses, [(i, baseline) for i in others])
    contrasts = {} if found is None else dict(zip(others, found.contrasts, strict=True))
    rows = (
        Row(
            variant=name,
            step=steps[name],
            nats=Mean.over(losses[i]),
            gain=None if i == baseline else Mean.over(losses[baseline] - losses[i]),
            contrast=contrasts.get(i),
        )
        for i, name in enumerate(variants)
    )
    return Comparison(at=at, rows=tuple(rows), finding=_find(variants, losses))


def _find(variants: Sequence[str], losses: NDArray[np.float64]) -> Finding:
    """What is won by the mixture, and not by the weights that were added with it."""
    mixtures = [i for i, name in enumerate(variants) if name not in (BASELINE, CONTROL)]
    controls = [i for i in range(len(variants)) if i not in mixtures]
    if not mixtures:
        mixtures, controls = [variants.index(CONTROL)], [variants.index(BASELINE)]
    means = losses.mean(1)
    best, control = min(mixtures, key=means.__getitem__), min(controls, key=means.__getitem__)
    found = analyse(losses, [(best, control)], list(product(mixtures, controls)))
    return Finding(
        variant=variants[best],
        control=variants[control],
        gain=Mean.over(losses[control] - losses[best]),
        contrast=None if found is None else found.contrasts[0],
    )


class Split(NamedTuple):
    ids: NDArray[np.int32]
    """(N,), in the order of the text."""
    num_bytes: int
    """Length of its text in UTF-8."""

    @property
    def sha256(self) -> str:
        """Hash of the token ids."""
        return sha256(self.ids.astype("<i4").tobytes()).hexdigest()


def run_finetune(settings: Settings, folder: Path, on_progress: OnProgress) -> FinetuneResult:
    """Train all models, or those that are missing in the folder, and compare them.

    A signal raises `Stopped`; what was done until then is saved, and the same call resumes.
    """
    model = HuggingFaceModel(settings.model)
    settings = with_block_length(settings, model)
    splits = read_splits(model, Path(settings.text), on_progress)
    signals: list[int] = []

    def check() -> None:
        if signals:
            stop(signals[0])

    task = make_task(settings, splits, model.prefix, check)
    prepare_folder(folder, task.settings, splits)
    # Two processes must not train in one folder.
    with closing(MetricsLog(folder / LOCK_FILE)), listening(signals.append):
        times, variants = train_variants(task, model, folder, on_progress)
    tokens = task.settings.batch_size * task.settings.block_length
    return FinetuneResult(
        settings=task.settings,
        num_train_tokens=len(splits["train"].ids),
        num_valid_tokens=task.num_evaluated * task.valid.num_predicted,
        bytes_per_token=splits["valid"].num_bytes / len(splits["valid"].ids),
        train_sha256=splits["train"].sha256,
        valid_sha256=splits["valid"].sha256,
        variants=tuple(variants),
        equal_tokens=compare(variants, dict.fromkeys(times, tokens)),
        equal_time=compare(variants, times),
        step_seconds=times,
        environment=environment(),
    )


def train_variants(
    task: Task, model: HuggingFaceModel, folder: Path, on_progress: OnProgress
) -> tuple[dict[str, float | None], list[TrainedVariant]]:
    """Seconds of a step of each variant, and all models; those in the folder are not trained."""
    base, settings = model.load().model, task.settings
    if any(parameter.dtype != torch.float32 for parameter in base.parameters()):
        raise ValueError(f"Out of memory: {settings.model} does not fit into it in float32.")
    # They stay as they were measured when the work began.
    if not (folder / TIMES_FILE).is_file():
        write_json(folder / TIMES_FILE, step_times(task, base, on_progress))
    times = checked(dict[str, float | None], read_json(folder / TIMES_FILE), TIMES_FILE)
    found: list[TrainedVariant] = []
    wanted = [(variant, seed) for seed in range(settings.seeds) for variant in settings.variants]
    for variant, seed in wanted:
        place = folder / f"{variant}-{seed}"
        checkpoint = folder / f"{variant}-{seed}-{CHECKPOINT_FILE}"
        if not (place / VARIANT_FILE).is_file():
            new = make_variant(base, variant, settings.num_components, seed)
            training = VariantTraining(task, new, variant, seed)
            training.run(
                checkpoint,
                lambda part, text: on_progress((len(found) + part) / len(wanted), text),
            )
            save_variant(training, model.tokenizer, place)
        # Here, because a process may have been killed after it saved the model.
        checkpoint.unlink(missing_ok=True)
        found.append(from_json(TrainedVariant, read_json(place / VARIANT_FILE)))
    return times, found


def save_variant(training: VariantTraining, tokenizer: Any, folder: Path) -> None:
    """Write a folder for `from_pretrained`: averaged weights, the baseline as a plain model."""
    model = training.model.model
    with quiet_transformers("finetune a model"), new_folder(folder, replace=True) as temporary:
        with training.averaged():
            saved = to_softmax(model) if training.variant == BASELINE else model
            saved.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        text = json.dumps(asdict(training.result()), indent=2) + "\n"
        (temporary / VARIANT_FILE).write_text(text)


def make_variant(base: Any, variant: str, num_components: int, seed: int) -> Any:
    """A copy of the model with a mixture that starts in this way, or with its softmax."""
    model = copy.deepcopy(base)
    # The same loss for all: what differs in time is the mixture.
    if variant == BASELINE:
        return upgrade(model, head="softmax")
    if variant == CONTROL:
        return upgrade(model, num_components=1, start="identity")
    return upgrade(model, num_components=num_components, start=variant, seed=seed)


def step_times(task: Task, base: Any, on_progress: OnProgress) -> dict[str, float | None]:
    """Median seconds of a training step of each variant; None if it has nothing to train.

    They take turns, so that all have the same share of what else the machine does.
    """
    settings = task.settings
    found: dict[str, list[float]] = {variant: [] for variant in settings.variants}
    for _ in range(NUM_ROUNDS):
        for variant, times in found.items():
            task.check()
            on_progress(0.0, f"measuring a step of {variant}")
            model = make_variant(base, variant, settings.num_components, 0)
            training = VariantTraining(task, model, variant, 0)
            if training.trainer is not None:
                times += [training.train_step() for _ in range(NUM_STEPS)][1:]
    return {variant: median(times) if times else None for variant, times in found.items()}


def read_splits(model: HuggingFaceModel, path: Path, on_progress: OnProgress) -> dict[str, Split]:
    """train and valid of a text or a folder, as `highrank data prepare` splits it.

    The test split is left for those who want to choose between results by valid.
    """
    spans, _ = split_text(path)
    splits = {}
    for name in ("train", "valid"):
        ids, num_bytes = [np.empty(0, np.int32)], 0
        for text in (text for span in spans[name] for text, _ in read_text(span)):
            ids.append(np.array(model.encode(text), dtype=np.int32))
            num_bytes += len(text.encode())
            on_progress(0.0, f"reading the {name} split, {num_bytes:,} bytes")
        splits[name] = Split(np.concatenate(ids), num_bytes)
    return splits


def make_task(
    settings: Settings, splits: dict[str, Split], prefix: Sequence[int], check: Callable[[], None]
) -> Task:
    """Raise unless there are blocks for a batch, and for an evaluation."""
    length = settings.block_length
    counts = {name: len(split.ids) // (length - len(prefix)) for name, split in splits.items()}
    for name, least in (("train", settings.batch_size), ("valid", 1)):
        if counts[name] < least:
            raise ValueError(
                f"the {name} split must have {least} blocks of {length} tokens at least, got "
                f"{counts[name]}: take a longer text, or a lower --block-length or --batch-size"
            )
    if settings.steps is None and settings.budget is None:
        settings = replace(settings, steps=max(1, counts["train"] // settings.batch_size))
    return Task(
        settings=settings,
        train=splits["train"].ids,
        prefix=tuple(prefix),
        valid=Blocks(splits["valid"].ids, 1, length=length, prefix=tuple(prefix)),
        check=check,
    )


def with_block_length(settings: Settings, model: HuggingFaceModel) -> Settings:
    """The settings with blocks that are no longer than the model's positions."""
    length, least, most = settings.block_length, 2 + len(model.prefix), model.max_window
    if length < least:
        raise ValueError(f"block-length must be at least {least}, got {length}")
    if most is None:
        return settings
    return replace(settings, block_length=min(length, most + len(model.prefix)))


def prepare_folder(folder: Path, settings: Settings, splits: dict[str, Split]) -> None:
    """Write what decides the numbers; refuse a folder that has something else."""
    hashes = {f"{name}_sha256": split.sha256 for name, split in splits.items()}
    content = {"format": FORMAT, "version": VERSION} | asdict(settings) | hashes
    path = folder / SETTINGS_FILE
    if path.exists():
        found, wanted = read_json(path), json.loads(json.dumps(content))
        # A resumed finetuning may get more time.
        changed = [key for key in wanted if found.get(key) != wanted[key] and key != "budget"]
        if changed:
            name = changed[0]
            raise ValueError(
                f"{folder} must be new or have the same settings, got {name.replace('_', '-')} "
                f"{found.get(name)}, not {wanted[name]}: choose another --out"
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
