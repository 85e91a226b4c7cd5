"""`highrank audit`: what an output layer can express, and what it does on a text.

T contexts, V words, D hidden size, n rows of a block.

Health of an audited mixture, with words and contexts written out.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from highrank.analysis.components import Component, component_report
from highrank.analysis.divergence import Divergence, expected_divergence
from highrank.analysis.log_probs import LogProbs
from highrank.environment import environment
from highrank.heads import MixtureHead
from highrank.studies.audit.layer import Layer
from highrank.studies.audit.model import AuditedModel, choose_windows, read_contexts
from highrank.studies.audit.rank import audit_rank, free_bytes, plan_spectrum
from highrank.studies.audit.result import (
    AuditResult,
    ComponentFacts,
    MixtureFacts,
    ModelAudit,
    PreferredWord,
    Takeover,
    TextFacts,
)
from highrank.studies.audit.unargmaxable import audit_reachability

OnProgress = Callable[[float, str], None]

NUM_CONTEXTS, QUICK_CONTEXTS = 2_000, 500
# About how long the parts of an audit take, for the progress bar.
COSTS = {"reading": 0.25, "rank": 0.35, "divergence": 0.1, "reachability": 0.2, "mixture": 0.1}
# Words of a context that are written out.
NUM_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """What is left of a model when its weights are gone."""

    architecture: str
    num_parameters: int
    layer: Layer
    hidden: Tensor
    """(T, D)."""
    target: Tensor
    """(T,): the token that follows each context."""
    context: Callable[[int], tuple[str, str]]
    """The last words of a context, and the word that follows."""


def run_audit(
    models: Sequence[AuditedModel],
    *,
    num_contexts: int | None = None,
    quick: bool = False,
    on_progress: OnProgress | None = None,
    on_model: Callable[[AuditResult], None] | None = None,
) -> AuditResult:
    """Audit each of the models.

    Args:
        num_contexts: T at most; 2,000 if None, or 500 if quick.
        quick: fewer contexts, and a sample of the words where all would take long.
        on_progress: called with the share of the work done and what is being done.
        on_model: called after each model with what has been found so far.
    """
    if not models:
        raise ValueError("models must have at least one, got none")
    T = num_contexts or (QUICK_CONTEXTS if quick else NUM_CONTEXTS)
    for model in models:
        choose_windows(len(model.tokens), T, model.window)
    start = time.monotonic()
    show = on_progress or (lambda share, text: None)
    result = AuditResult(
        quick=quick, num_contexts=T, elapsed=0.0, environment=environment(), models=()
    )
    for i, model in enumerate(models):
        title = f"{model.name}: " if len(models) > 1 else ""
        part = _part(show, i / len(models), 1 / len(models), title)
        done = (*result.models, audit_model(model, T, quick, part))
        result = replace(result, models=done, elapsed=time.monotonic() - start)
        if on_model is not None:
            on_model(result)
    return result


def audit_model(
    model: AuditedModel, num_contexts: int, quick: bool, on_progress: OnProgress
) -> ModelAudit:
    start = time.monotonic()
    parts = _parts(on_progress)
    reading = _read(model, num_contexts, parts["reading"])
    layer, hidden, room = reading.layer, reading.hidden, free_bytes()
    plan = plan_spectrum(layer, len(hidden), quick, room)
    rank = audit_rank(layer, hidden, plan, parts["rank"])
    divergence, nats = _predictions(reading, parts["divergence"])
    reachability, note = audit_reachability(layer, model.word, quick, room, parts["reachability"])
    mixture = None
    if layer.mixture is not None:
        mixture = audit_mixture(
            layer.mixture, hidden, model.word, reading.context, parts["mixture"]
        )
    on_progress(1.0, "done")
    return ModelAudit(
        name=model.name,
        source=model.source,
        architecture=reading.architecture,
        num_parameters=reading.num_parameters,
        head=layer.facts,
        text=TextFacts(
            name=model.text,
            sha256=model.text_sha256,
            tokens_sha256=_tokens_sha256(model),
            num_tokens=len(model.tokens),
            num_contexts=len(hidden),
            nats=nats,
            perplexity=math.exp(min(nats, 700.0)),
        ),
        rank=rank,
        divergence=divergence,
        reachability=reachability,
        reachability_note=note,
        mixture=mixture,
        elapsed=time.monotonic() - start,
    )


def _tokens_sha256(model: AuditedModel) -> str:
    tokens = np.asarray(model.tokens)
    words = {int(token): model.word(int(token)) for token in np.unique(tokens)}
    digest = hashlib.sha256()
    for token in tokens.tolist():
        digest.update(words[token].encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _read(model: AuditedModel, num_contexts: int, on_progress: OnProgress) -> _Reading:
    on_progress(0.0, "loading")
    opened = model.open()
    tokens = model.tokens
    largest, V = int(max(tokens)), opened.layer.facts.vocab_size
    if largest >= V:
        raise ValueError(
            f"the tokens of {model.name} must be below its {V:,} words, got {largest:,}"
        )
    found = read_contexts(
        opened.states, tokens, num_contexts, window=model.window, on_progress=on_progress
    )
    if not found.hidden.isfinite().all():
        raise ValueError(f"the hidden states of {model.name} must be finite, got others")

    def context(row: int) -> tuple[str, str]:
        end = int(found.positions[row]) + 1
        words = [model.word(int(token)) for token in tokens[max(0, end - NUM_SHOWN) : end + 1]]
        return " ".join(words[:-1]), words[-1]

    return _Reading(
        architecture=opened.architecture,
        num_parameters=opened.num_parameters,
        layer=opened.layer,
        hidden=found.hidden,
        target=torch.tensor([int(tokens[p + 1]) for p in found.positions]),
        context=context,
    )


def _predictions(reading: _Reading, on_progress: OnProgress) -> tuple[Divergence, float]:
    """The divergence and the mean loss of the targets, in one pass in float32."""
    losses: list[Tensor] = []
    source = reading.layer.log_probs(reading.hidden, torch.float32)
    watched = _watched(source, reading.target, losses)
    divergence = expected_divergence(watched, on_progress=on_progress)
    return divergence, torch.cat(losses).mean().item()


def _watched(source: LogProbs, target: Tensor, losses: list[Tensor]) -> LogProbs:
    """The same source; the losses of the targets (T,) are put down as their rows go by."""

    def make_blocks() -> Iterator[Tensor]:
        row = 0
        for block in source.make_blocks():  # (n, V)
            own = target[row : row + len(block), None]
            losses.append(-block.gather(1, own)[:, 0].double())  # (n,)
            row += len(block)
            yield block

    return replace(source, make_blocks=make_blocks)


def _parts(on_progress: OnProgress) -> dict[str, OnProgress]:
    parts, before = {}, 0.0
    for name, cost in COSTS.items():
        parts[name] = _part(on_progress, before, cost, "" if name == "reading" else f"{name}: ")
        before += cost
    return parts


def _part(on_progress: OnProgress, before: float, size: float, title: str) -> OnProgress:
    return lambda share, text: on_progress(min(1.0, before + share * size), title + text)


def audit_mixture(
    head: MixtureHead,
    hidden: Tensor,
    word: Callable[[int], str],
    context: Callable[[int], tuple[str, str]],
    on_progress: Callable[[float, str], None],
) -> MixtureFacts:
    """What the components do in the contexts with hidden states (T, D).

    Args:
        word: how a word of the vocabulary is written.
        context: the last words of a context and the word that follows, by its row of `hidden`.
    """
    report = component_report(head, hidden, on_progress=on_progress)
    return MixtureFacts(
        num_contexts=report.num_contexts,
        weight_entropy=report.weight_entropy,
        use_entropy=report.use_entropy,
        specialisation=report.specialisation,
        pair_divergence=report.pair_divergence,
        num_dead=len(report.dead),
        components=tuple(_component(found, word, context) for found in report.components),
    )


def _component(
    found: Component, word: Callable[[int], str], context: Callable[[int], tuple[str, str]]
) -> ComponentFacts:
    takeovers = []
    for takeover in found.takeovers:
        text, next_word = context(takeover.context)
        takeovers.append(Takeover(text=text, next_word=next_word, weight=takeover.weight))
    return ComponentFacts(
        mean_weight=found.mean_weight,
        largest_share=found.largest_share,
        is_dead=found.is_dead,
        preferred=tuple(
            PreferredWord(word=word(p.word), prob=p.prob, share=p.share) for p in found.preferred
        ),
        takeovers=tuple(takeovers),
    )
