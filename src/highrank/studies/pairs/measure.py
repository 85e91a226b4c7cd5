"""Train an encoder–decoder with several heads on the same pairs, and compare them.

All models of a seed read the same batches, so that equal steps are equal tokens. How long a step of
each takes is measured before the training, in turns: equal time is steps × this, whatever else the
machine does. Learning rates are constant and weights averaged, so that a model may be judged after
any number of steps: each is scored at the two marks where it is compared.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from highrank.analysis.contrasts import Contrast, analyse
from highrank.environment import Environment, environment
from highrank.files import checked, from_json, new_folder, read_json, write_atomically
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.pairs.loading import EncoderDecoder
from highrank.integrations.huggingface.pairs.scratch import learn_tokenizer
from highrank.integrations.huggingface.upgrade import to_softmax
from highrank.progress import OnProgress
from highrank.studies.pairs.corpus import LONGEST, Corpus, CorpusFacts, encode_corpus, read_corpus
from highrank.studies.pairs.scoring import measures_of
from highrank.studies.pairs.settings import (
    BASELINE,
    EPOCHS,
    EPOCHS_FROM_SCRATCH,
    Settings,
)
from highrank.studies.pairs.training import ModelTraining, Task, TrainedModel
from highrank.studies.pairs.variants import Models
from highrank.training.log import MetricsLog
from highrank.training.signals import listening, stop

SETTINGS_FILE, TIMES_FILE, LOCK_FILE = "settings.json", "step_times.json", "lock"
CHECKPOINT_FILE, MODEL_FILE = "trainer.pt", "variant.json"
FORMAT, VERSION = "highrank pairs", 1
# To measure the time of a step: rounds, and steps of each, of which the first does not count.
NUM_ROUNDS, NUM_STEPS = 3, 5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measure of one variant, over its seeds."""

    mean: float
    values: tuple[float, ...]
    """By seed."""
    contrast: Contrast | None
    """Against the softmax, as a loss: less is better. None for the softmax itself, or one seed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    variant: str
    step: int
    cells: dict[str, Cell]
    """By measure."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    at: float
    """Target tokens, or seconds."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class PairsResult:
    settings: Settings
    corpus: CorpusFacts
    vocab_size: int
    models: tuple[TrainedModel, ...]
    step_seconds: dict[str, float]
    """Time of a step of each variant, measured in turns before the training."""
    equal_tokens: Comparison
    equal_time: Comparison
    environment: Environment


def run_pairs(settings: Settings, folder: Path, on_progress: OnProgress) -> PairsResult:
    """Train all models, or those that are missing in the folder, and compare them.

    A signal raises `Stopped`; what was done until then is saved, and the same call resumes.
    """
    signals: list[int] = []

    def check() -> None:
        if signals:
            stop(signals[0])

    on_progress(0.0, "reading the pairs")
    splits, num_seen = read_corpus(settings)
    base, tokenizer = None, None
    with quiet_transformers("train on pairs"):
        if settings.is_from_scratch:
            on_progress(0.0, "learning a tokenizer")
            texts = (text for pair in splits.train for text in pair)
            tokenizer = learn_tokenizer(texts, settings.vocabulary, settings.lower)
        else:
            assert settings.model is not None
            loaded = EncoderDecoder(settings.model)
            base, tokenizer = loaded.load_weights().float(), loaded.tokenizer
        corpus = encode_corpus(splits, num_seen, tokenizer, settings, _longest(base))
        task = Task(settings=settings, corpus=corpus, tokenizer=tokenizer, check=check)
        _prepare_folder(folder, settings, corpus.facts)
        # Two processes must not train in one folder.
        with closing(MetricsLog(folder / LOCK_FILE)), listening(signals.append):
            models = Models(settings, base, tokenizer, corpus.encoded["train"])
            times = _times(task, models, folder, on_progress)
            marks = make_marks(settings, times, _num_steps(settings, corpus))
            trained = _train(task, models, marks, folder, on_progress)
    baseline = next(one for one in trained if one.variant == BASELINE)
    at_tokens = next(p.num_targets for p in baseline.points if p.step == marks[BASELINE][0])
    return PairsResult(
        settings=settings,
        corpus=corpus.facts,
        vocab_size=len(tokenizer),
        models=tuple(trained),
        step_seconds=times,
        equal_tokens=compare(
            trained, {v: steps[0] for v, steps in marks.items()}, at_tokens, settings.task
        ),
        equal_time=compare(
            trained,
            {v: steps[1] for v, steps in marks.items()},
            max(steps[1] * times[name] for name, steps in marks.items()),
            settings.task,
        ),
        environment=environment(),
    )


def _longest(base: Any) -> int:
    limit = getattr(getattr(base, "config", None), "max_position_embeddings", None)
    return min(LONGEST, limit) if limit else LONGEST


def _num_steps(settings: Settings, corpus: Corpus) -> int | None:
    """Steps of each model; None if a budget decides."""
    if settings.steps is not None or settings.budget is not None:
        return settings.steps
    from highrank.data.pairs.encoded import batches_in_order

    epochs = EPOCHS_FROM_SCRATCH if settings.is_from_scratch else EPOCHS
    return epochs * len(batches_in_order(corpus.encoded["train"], settings.batch_tokens))


def make_marks(
    settings: Settings, times: Mapping[str, float], num_steps: int | None
) -> dict[str, tuple[int, int]]:
    """Steps of each variant at equal tokens and at equal time: no model has more than both.

    Args:
        times: seconds of a step.
        num_steps: of each; None takes all the budget.
    """
    seconds = settings.seconds_of_each()
    most = dict.fromkeys(times, num_steps)
    if seconds is not None:
        for name, each in times.items():
            affordable = max(1, int(seconds / each))
            most[name] = min(num_steps or affordable, affordable)
    counts = {name: count for name, count in most.items() if count is not None}
    tokens_mark = min(counts.values())
    time = min(count * times[name] for name, count in counts.items())
    return {name: (tokens_mark, max(1, int(time / each + 1e-9))) for name, each in times.items()}


def _times(task: Task, models: Models, folder: Path, on_progress: OnProgress) -> dict[str, float]:
    """Median seconds of a training step of each variant, as they were when the work began."""
    path = folder / TIMES_FILE
    if not path.is_file():
        found: dict[str, list[float]] = {name: [] for name in task.settings.heads}
        for _ in range(NUM_ROUNDS):
            # They take turns, so that all have the same share of what else the machine does.
            for name, times in found.items():
                task.check()
                on_progress(0.0, f"measuring a step of {name}")
                training = ModelTraining(task, models.make(name, 0), name, 0, (1,))
                times += [training.train_step() for _ in range(NUM_STEPS)][1:]
        _write_json(path, {name: median(times) for name, times in found.items()})
    return checked(dict[str, float], read_json(path), TIMES_FILE)  # type: ignore[no-any-return]


def _train(
    task: Task,
    models: Models,
    marks: Mapping[str, tuple[int, int]],
    folder: Path,
    on_progress: OnProgress,
) -> list[TrainedModel]:
    """All models; those in the folder are not trained."""
    found: list[TrainedModel] = []
    settings = task.settings
    wanted = [(name, seed) for seed in range(settings.seeds) for name in settings.heads]
    for name, seed in wanted:
        place = folder / f"{name.replace(':', '-')}-{seed}"
        checkpoint = place.with_name(f"{place.name}-{CHECKPOINT_FILE}")
        if not (place / MODEL_FILE).is_file():
            training = ModelTraining(task, models.make(name, seed), name, seed, marks[name])
            training.run(
                checkpoint,
                lambda part, text: on_progress((len(found) + part) / len(wanted), text),
            )
            _save_model(training, place)
        # Here, because a process may have been killed after it saved the model.
        checkpoint.unlink(missing_ok=True)
        found.append(from_json(TrainedModel, read_json(place / MODEL_FILE)))
    return found


def _save_model(training: ModelTraining, folder: Path) -> None:
    """Write a folder for `from_pretrained`: averaged weights, the baseline as a plain model."""
    model = training.model.model
    with new_folder(folder, replace=True) as temporary:
        with training.trainer.averaged():
            saved = to_softmax(model) if training.variant == BASELINE else model
            saved.save_pretrained(temporary)
        training.task.tokenizer.save_pretrained(temporary)
        text = json.dumps(asdict(training.result()), indent=2) + "\n"
        (temporary / MODEL_FILE).write_text(text, encoding="utf-8")


def compare(
    models: Sequence[TrainedModel], steps: Mapping[str, int], at: float, task: str
) -> Comparison:
    """Scores of all variants at these steps, each measure with its contrasts to the softmax."""
    variants = list(dict.fromkeys(model.variant for model in models))
    cells: dict[str, dict[str, Cell]] = {name: {} for name in variants}
    for measure in measures_of(task, models[0].scores[-1].values):
        values = np.array(
            [
                [one.scores_at(steps[name]).values[measure.key] for one in select(models, name)]
                for name in variants
            ]
        )  # (C, S)
        losses = values if measure.is_loss else -values
        found = analyse(losses, [(i, 0) for i in range(1, len(variants))])
        contrasts = [None, *(found.contrasts if found else [None] * (len(variants) - 1))]
        for name, row, contrast in zip(variants, values, contrasts, strict=True):
            cells[name][measure.key] = Cell(
                mean=fmean(row), values=tuple(row.tolist()), contrast=contrast
            )
    rows = (Row(variant=name, step=steps[name], cells=cells[name]) for name in variants)
    return Comparison(at=at, rows=tuple(rows))


def select(models: Sequence[TrainedModel], variant: str) -> list[TrainedModel]:
    return [model for model in models if model.variant == variant]


def _prepare_folder(folder: Path, settings: Settings, facts: CorpusFacts) -> None:
    """Write what decides the numbers; refuse a folder that has something else."""
    content = {"format": FORMAT, "version": VERSION, **asdict(settings), "sha256": facts.sha256}
    path = folder / SETTINGS_FILE
    if path.exists():
        found, wanted = read_json(path), json.loads(json.dumps(content))
        changed = [key for key in wanted if found.get(key) != wanted[key]]
        if changed:
            name = changed[0]
            raise ValueError(
                f"{folder} must be new or have the same settings, got {name.replace('_', '-')} "
                f"{found.get(name)}, not {wanted[name]}: choose another --out"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} must be new or have {SETTINGS_FILE}, got other files")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(path, content)


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))
