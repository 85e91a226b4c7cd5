"""Upgrade a pretrained model, train it on, and train the same model as a softmax beside it."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from highrank.environment import environment
from highrank.files import checked, from_json, new_folder, read_json, write_atomically
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.reader import HuggingFaceModel
from highrank.integrations.huggingface.upgrade import to_softmax
from highrank.studies.finetune.result import Arm, FinetuneResult, compare_time, compare_tokens
from highrank.studies.finetune.settings import SOFTMAX, Settings
from highrank.studies.finetune.text import Blocks, OnProgress, Split, read_splits
from highrank.studies.finetune.training import ArmTraining, Task, num_evaluated
from highrank.studies.finetune.variants import make_variant, step_times
from highrank.training.log import MetricsLog
from highrank.training.signals import listening, stop

SETTINGS_FILE, TIMES_FILE, LOCK_FILE = "settings.json", "step_times.json", "lock"
CHECKPOINT_FILE, ARM_FILE = "trainer.pt", "arm.json"
FORMAT, VERSION = "highrank finetuning", 1


def run_finetune(settings: Settings, folder: Path, on_progress: OnProgress) -> FinetuneResult:
    """Train all models, or those that are missing in the folder, and compare them.

    A signal raises `Stopped`; what was done until then is saved, and the same call resumes.
    """
    model = HuggingFaceModel(settings.model)
    _check_block_length(settings, model)
    splits = read_splits(model, Path(settings.text), on_progress)
    signals: list[int] = []
    task = make_task(settings, splits, model, lambda: _stop_if(signals))
    settings = task.settings
    prepare_folder(folder, settings, splits)
    # Two processes must not train in one folder.
    lock = MetricsLog(folder / LOCK_FILE)
    base = model.load().model
    if any(parameter.dtype != torch.float32 for parameter in base.parameters()):
        raise ValueError(f"Out of memory: {settings.model} does not fit into it in float32.")
    arms: list[Arm] = []
    wanted = [(variant, seed) for seed in settings.seeds for variant in settings.variants]
    with listening(signals.append):
        times = find_times(folder / TIMES_FILE, task, base, on_progress)
        for variant, seed in wanted:
            arms.append(
                run_arm(
                    folder / f"{variant}-{seed}",
                    model,
                    base,
                    (task, variant, seed),
                    lambda part, text: on_progress((len(arms) + part) / len(wanted), text),
                )
            )
    lock.close()
    return FinetuneResult(
        settings=settings,
        num_train_tokens=len(splits["train"].ids),
        num_valid_tokens=num_evaluated(task.valid, settings) * task.valid.num_predicted,
        bytes_per_token=splits["valid"].num_bytes / len(splits["valid"].ids),
        train_sha256=splits["train"].sha256,
        valid_sha256=splits["valid"].sha256,
        arms=tuple(arms),
        equal_tokens=compare_tokens(arms, settings.batch_size * settings.block_length),
        equal_time=compare_time(arms, times),
        step_seconds=times,
        environment=environment(),
    )


def run_arm(
    folder: Path,
    model: HuggingFaceModel,
    base: Any,
    job: tuple[Task, str, int],
    on_progress: OnProgress,
) -> Arm:
    """Train one model unless its folder is there; then that has its numbers and its weights."""
    task, variant, seed = job
    if (folder / ARM_FILE).is_file():
        return from_json(Arm, read_json(folder / ARM_FILE))
    settings = task.settings
    share = None
    if settings.budget is not None:
        share = settings.budget / (len(settings.seeds) * len(settings.variants))
    path = folder.with_name(f"{folder.name}-{CHECKPOINT_FILE}")
    new = make_variant(base, variant, settings.num_components, seed)
    training = ArmTraining(task, new, variant, seed, path, share)
    arm = training.run(on_progress)
    with quiet_transformers("finetune a model"), new_folder(folder, replace=True) as temporary:
        with training.averaged():
            saved = to_softmax(new) if variant == SOFTMAX else new
            saved.save_pretrained(temporary)
        model.tokenizer.save_pretrained(temporary)
        (temporary / ARM_FILE).write_text(json.dumps(asdict(arm), indent=2) + "\n")
    path.unlink()
    return arm


def find_times(
    path: Path, task: Task, base: Any, on_progress: OnProgress
) -> dict[str, float | None]:
    """Seconds of a step of each variant, as they were measured when the work began."""
    if path.is_file():
        return checked(dict[str, float | None], read_json(path), TIMES_FILE)  # type: ignore[no-any-return]
    times = step_times(task, base, on_progress)
    text = json.dumps(times) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return times


def make_task(
    settings: Settings,
    splits: dict[str, Split],
    model: HuggingFaceModel,
    check: Callable[[], None],
) -> Task:
    """Raise unless there are blocks for a batch, and for an evaluation."""
    length = settings.block_length
    blocks = {name: Blocks(split.ids, length, model.prefix) for name, split in splits.items()}
    for name, least in (("train", settings.batch_size), ("valid", 1)):
        if (found := blocks[name].count) < least:
            raise ValueError(
                f"the {name} split must have {least} blocks of {length} tokens at least, got "
                f"{found}: take a longer text, or a lower --block-length or --batch-size"
            )
    if settings.steps is None and settings.budget is None:
        settings = replace(settings, steps=max(1, blocks["train"].count // settings.batch_size))
    return Task(settings=settings, train=blocks["train"], valid=blocks["valid"], check=check)


def _stop_if(signals: list[int]) -> None:
    if signals:
        stop(signals[0])


def _check_block_length(settings: Settings, model: HuggingFaceModel) -> None:
    limit = model.max_window
    most = None if limit is None else limit + len(model.prefix)
    if most is not None and settings.block_length > most:
        raise ValueError(
            f"block-length must be at most {most} for {settings.model}, got {settings.block_length}"
        )


def prepare_folder(folder: Path, settings: Settings, splits: dict[str, Split]) -> None:
    """Write what decides the numbers; refuse a folder that has something else."""
    content = json.loads(
        json.dumps(
            {"format": FORMAT, "version": VERSION}
            | asdict(settings)
            | {f"{name}_sha256": split.sha256 for name, split in splits.items()}
        )
    )
    path = folder / SETTINGS_FILE
    if path.exists():
        found = read_json(path)
        changed = [key for key in content if found.get(key) != content[key]]
        # A resumed finetuning may get more time.
        changed = [key for key in changed if key != "budget"]
        if changed:
            name = changed[0]
            raise ValueError(
                f"{folder} must be new or have the same settings, got {name.replace('_', '-')} "
                f"{found.get(name)}, not {content[name]}: choose another --out"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"the folder must be new or a finetuning, got {folder} with other files")
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
