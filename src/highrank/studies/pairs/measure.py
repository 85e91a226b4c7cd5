"""Train an encoder–decoder with several heads on the same pairs, and compare them.

All models of a seed read the same batches, so that equal steps are equal tokens. How long a step of
each takes is measured before the training, in turns: equal time is steps × this, whatever else the
machine does. Learning rates are constant and weights averaged, so that a model may be judged after
any number of steps: each is scored at the two marks where it is compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from highrank.analysis.contrasts import Contrast, analyse
from highrank.config import StageConfig
from highrank.data.pairs.reading import PairSplits
from highrank.environment import Environment, environment
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.pairs.encoding import TextEncoder
from highrank.integrations.huggingface.pairs.loading import EncoderDecoder, set_dropout
from highrank.integrations.huggingface.pairs.scratch import learn_tokenizer, read_config
from highrank.integrations.huggingface.recipe import BASELINE
from highrank.integrations.huggingface.variants import (
    open_folder,
    step_times,
    train_variants,
)
from highrank.progress import OnProgress
from highrank.studies.pairs.corpus import Corpus, CorpusFacts, encode_corpus, read_corpus
from highrank.studies.pairs.scoring import measures_of
from highrank.studies.pairs.settings import EPOCHS, EPOCHS_FROM_SCRATCH, Settings
from highrank.studies.pairs.training import PairsTraining, Task, TrainedModel
from highrank.studies.pairs.variants import Models

FORMAT, VERSION = "highrank pairs", 1
# In each turn in which the time of a step is measured.
NUM_STEPS = 5
# Marks that differ by less than one in so many steps are one: searching all translations twice
# would tell nothing more.
SAME_MARK = 100


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

    @property
    def stage(self) -> StageConfig:
        """How each model was trained."""
        return self.settings.stage(self.equal_tokens.rows[0].step)


def run_pairs(settings: Settings, folder: Path, on_progress: OnProgress) -> PairsResult:
    """Train all models, or those that are missing in the folder, and compare them.

    A signal raises `Stopped`; what was done until then is saved, and the same call resumes.
    """
    if settings.model is not None and Path(settings.model).is_file():
        raise ValueError(
            "a model, or --config transformer-tiny, must be given before the pairs, got the file "
            f"{settings.model}"
        )
    on_progress(0.0, "reading the pairs")
    splits, num_seen = read_corpus(settings)
    with quiet_transformers("train on pairs"):
        on_progress(0.0, "reading the model" if settings.model else "learning a tokenizer")
        base, tokenizer, config = _beginning(settings, splits)
        encoder = TextEncoder.of(config, tokenizer, keeps_end=settings.task == "dialogue")
        corpus = encode_corpus(splits, num_seen, encoder, settings)
        hashes = {"sha256": corpus.facts.sha256}
        content = {"format": FORMAT, "version": VERSION} | asdict(settings) | hashes
        with open_folder(folder, content) as check:
            task = Task(settings=settings, corpus=corpus, encoder=encoder, check=check)
            models = Models(settings, base, tokenizer, corpus.encoded["train"])
            marks: dict[str, tuple[int, int]] = {}

            def start(name: str, seed: int = 0) -> PairsTraining:
                steps = marks.get(name, (1,))
                return PairsTraining(task, models.make(name, seed), name, seed, steps)

            timed = step_times(settings.heads, start, folder, on_progress, NUM_STEPS)
            times = {name: each for name, each in timed.items() if each is not None}
            marks = make_marks(settings, times, _num_steps(settings, corpus))
            wanted = [(name, seed) for seed in range(settings.seeds) for name in settings.heads]
            trained = train_variants(wanted, start, folder, TrainedModel, tokenizer, on_progress)
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


def _beginning(settings: Settings, splits: PairSplits) -> tuple[Any, Any, Any]:
    """The pretrained model, or None to begin at random; its tokenizer; its configuration."""
    if settings.config is not None:
        texts = (text for pair in splits.train for text in pair)
        tokenizer = learn_tokenizer(texts, settings.vocabulary, settings.lower)
        return None, tokenizer, read_config(settings.config)
    assert settings.model is not None
    loaded = EncoderDecoder(
        settings.model,
        source_lang=settings.source_lang,
        target_lang=settings.target_lang,
        source_prefix=settings.source_prefix,
    )
    set_dropout(loaded.config, settings.dropout)
    return loaded.load_weights().float(), loaded.tokenizer, loaded.config


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
    at_time = {name: max(1, int(time / each + 1e-9)) for name, each in times.items()}
    for name, count in at_time.items():
        if abs(count - tokens_mark) <= tokens_mark // SAME_MARK:
            at_time[name] = tokens_mark
    return {name: (tokens_mark, count) for name, count in at_time.items()}


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
