"""Upgrade a pretrained model, train it, and train the same model as a softmax beside it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.analysis.contrasts import Contrast, analyse
from highrank.data.batches import Blocks
from highrank.data.text import read_text, split_text
from highrank.environment import Environment, environment
from highrank.integrations.huggingface.reader import HuggingFaceModel
from highrank.integrations.huggingface.recipe import BASELINE, CONTROL
from highrank.integrations.huggingface.upgrade import upgrade
from highrank.integrations.huggingface.variants import (
    open_folder,
    step_times,
    train_variants,
)
from highrank.progress import OnProgress
from highrank.studies.finetune.settings import Settings
from highrank.studies.finetune.training import FinetuneTraining, Task, TrainedVariant

FORMAT, VERSION = "highrank finetuning", 2
# In each turn in which the time of a step is measured.
NUM_STEPS = 3


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
    task = make_task(settings, splits, model.prefix)
    settings = task.settings
    # A resumed finetuning may get more time.
    content = settings_file(settings, splits)
    with open_folder(folder, content, may_change=("budget",)) as check:
        task = replace(task, check=check)
        base = model.load().model
        if any(parameter.dtype != torch.float32 for parameter in base.parameters()):
            raise ValueError(f"Out of memory: {settings.model} does not fit into it in float32.")

        def start(variant: str, seed: int = 0) -> FinetuneTraining:
            new = make_variant(base, variant, settings.num_components, seed)
            return FinetuneTraining(task, new, variant, seed)

        times = step_times(settings.variants, start, folder, on_progress, NUM_STEPS)
        wanted = [(name, seed) for seed in range(settings.seeds) for name in settings.variants]
        variants = train_variants(
            wanted, start, folder, TrainedVariant, model.tokenizer, on_progress
        )
    tokens = settings.batch_size * settings.block_length
    return FinetuneResult(
        settings=settings,
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


def settings_file(settings: Settings, splits: dict[str, Split]) -> dict[str, Any]:
    """Everything that decides the numbers."""
    hashes = {f"{name}_sha256": split.sha256 for name, split in splits.items()}
    return {"format": FORMAT, "version": VERSION} | asdict(settings) | hashes


def make_variant(base: Any, variant: str, num_components: int, seed: int) -> Any:
    """A copy of the model with a mixture that starts in this way, or with its softmax."""
    model = copy.deepcopy(base)
    # The same loss for all: what differs in time is the mixture.
    if variant == BASELINE:
        return upgrade(model, head="softmax")
    if variant == CONTROL:
        return upgrade(model, num_components=1, start="identity")
    return upgrade(model, num_components=num_components, start=variant, seed=seed)


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
    settings: Settings,
    splits: dict[str, Split],
    prefix: Sequence[int],
    check: Callable[[], None] = lambda: None,
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
