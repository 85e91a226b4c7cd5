"""Scores of a trained model on the test pairs."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from highrank.data.pairs.encoded import EncodedPairs, batches_in_order
from highrank.evaluation.dialogue import ORDERS, dialogue_score
from highrank.evaluation.translation import translation_score
from highrank.integrations.huggingface.pairs.decoding import Beams, decode
from highrank.integrations.huggingface.pairs.encoding import TextEncoder
from highrank.integrations.huggingface.trainable import TrainableModel
from highrank.progress import OnProgress
from highrank.studies.pairs.corpus import Corpus
from highrank.studies.pairs.settings import Settings

# Pairs that are kept to be read.
NUM_SAMPLES = 10
# Beams, hypotheses and words of a task.
TASK_BEAMS = {
    "translation": Beams(num_beams=5),
    "summary": Beams(num_beams=4),
    # As Yang et al. (2018), section 3.1: the five best of ten beams, of 30 words at most.
    "dialogue": Beams(num_beams=10, num_best=5, max_words=30),
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    source: str
    reference: str
    hypothesis: str


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The numbers of one model on the test pairs, with its averaged weights."""

    values: dict[str, float]
    """By their names in `MEASURES`, and others."""
    notes: dict[str, str]
    """Signatures and the like: how the numbers were made."""
    samples: tuple[Sample, ...]
    step: int = 0
    """Updates of the weights."""
    seconds: float = 0.0
    """Time of the search."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number by which models are compared."""

    key: str
    label: str
    is_loss: bool = False
    """Whether less is better."""
    digits: int = 2


_LOSSES = (
    Measure(key="nats", label="nats per token", is_loss=True, digits=4),
    Measure(key="perplexity", label="perplexity per token", is_loss=True),
    Measure(key="bits_per_byte", label="bits per byte", is_loss=True, digits=4),
)
_BLEU = (
    Measure(key="bleu_lower", label="BLEU, case ignored"),
    Measure(key="bleu", label="BLEU"),
    Measure(key="chrf", label="chrF"),
)
_RESPONSES = (
    *(Measure(key=f"precision_{n}", label=f"BLEU-{n} precision", digits=4) for n in ORDERS),
    *(Measure(key=f"recall_{n}", label=f"BLEU-{n} recall", digits=4) for n in ORDERS),
    *(Measure(key=f"distinct_{n}", label=f"distinct-{n}", digits=4) for n in (1, 2)),
)
MEASURES = {
    "translation": (*_BLEU, *_LOSSES),
    "summary": (*_BLEU, *_LOSSES),
    "dialogue": (*_RESPONSES, *_LOSSES),
}


UNSEEN = "_unseen"


def measures_of(task: str, values: Collection[str]) -> list[Measure]:
    """The task's measures, and the same of unseen pairs, as far as there are values of them."""
    of_all = MEASURES[task]
    of_unseen = (
        replace(one, key=one.key + UNSEEN, label=f"{one.label}, unseen pairs") for one in of_all
    )
    return [one for one in (*of_all, *of_unseen) if one.key in values]


def beams_of(settings: Settings) -> Beams:
    """The task's search, but for what the settings say."""
    default = TASK_BEAMS[settings.task]
    return Beams(
        num_beams=settings.beam or default.num_beams,
        num_best=settings.best or default.num_best,
        max_words=settings.max_words or default.max_words,
    )


@torch.no_grad()
def held_out_nats(model: TrainableModel, pairs: EncodedPairs, pad: int, batch_tokens: int) -> float:
    """Mean loss of a target token."""
    device = next(model.parameters()).device
    total = 0.0
    for rows in batches_in_order(pairs, batch_tokens):
        batch = pairs.batch(rows, pad, device)
        total += model(batch.inputs, batch.target).loss.item() * batch.num_targets
    return total / pairs.num_targets


def score(
    model: TrainableModel,
    encoder: TextEncoder,
    corpus: Corpus,
    settings: Settings,
    on_progress: OnProgress,
    check: Callable[[], None],
) -> Scores:
    """Loss and search on the test pairs; where some stand in train, also without these."""
    pairs, start = corpus.splits.test, time.perf_counter()
    found = decode(
        model.model,
        encoder,
        [pair.source for pair in pairs],
        beams_of(settings),
        on_progress=on_progress,
        check=check,
    )
    seconds = time.perf_counter() - start
    texts = [[one.text for one in some] for some in found]

    def scored(rows: Sequence[int]) -> tuple[dict[str, float], dict[str, str]]:
        encoded = corpus.encoded["test"].select(rows)
        pad = encoder.tokenizer.pad_token_id
        nats = held_out_nats(model, encoded, pad, settings.batch_tokens)
        num_bytes = sum(corpus.test_bytes[row] for row in rows)
        references = [pairs[row].target for row in rows]
        values, notes = SCORERS[settings.task]([texts[row] for row in rows], references)
        bits = nats * encoded.num_targets / math.log(2)
        losses = {"nats": nats, "perplexity": math.exp(nats), "bits_per_byte": bits / num_bytes}
        return values | losses, notes

    values, notes = scored(range(len(pairs)))
    if 0 < len(corpus.unseen) < len(pairs):
        of_unseen = scored(corpus.unseen)[0]
        values |= {key + UNSEEN: value for key, value in of_unseen.items()}
    samples = list(zip(pairs, texts, strict=True))[:NUM_SAMPLES]
    return Scores(
        values=values,
        notes=notes,
        samples=tuple(
            Sample(source=pair.source, reference=pair.target, hypothesis=some[0] if some else "")
            for pair, some in samples
        ),
        seconds=seconds,
    )


def _score_translations(
    texts: Sequence[Sequence[str]], references: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    first = [some[0] for some in texts]
    cased = translation_score(first, references)
    lower = translation_score(first, references, lower=True)
    values = {
        "bleu_lower": lower.bleu,
        "bleu": cased.bleu,
        "chrf": cased.chrf,
        "length": cased.length,
        "reference_length": cased.reference_length,
        "brevity_penalty": cased.brevity_penalty,
    }
    notes = {
        "BLEU, case ignored": lower.signature,
        "BLEU": cased.signature,
        "chrF": cased.chrf_signature,
        "Words of the references": f"{cased.reference_length:,}",
    }
    return values, notes


def _score_responses(
    texts: Sequence[Sequence[str]], references: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    found = dialogue_score(texts, references)
    values = {f"precision_{n}": found.precision[n - 1] for n in ORDERS}
    values |= {f"recall_{n}": found.recall[n - 1] for n in ORDERS}
    values |= {f"distinct_{n}": found.distinct[n - 1] for n in (1, 2)}
    of_references = " and ".join(f"{value:.4f}" for value in found.reference_distinct)
    return values, {
        "Smoothing of sentence BLEU": found.smoothing,
        "Distinct-1 and -2 of the references": of_references,
    }


SCORERS = {
    "translation": _score_translations,
    "summary": _score_translations,
    "dialogue": _score_responses,
}
