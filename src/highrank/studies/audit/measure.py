"""`highrank audit`: what an output layer can express, and what it does on a text.

T contexts, V vocabulary, D hidden size, E embedding size, n rows of a block.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from highrank.analysis.components import ComponentReport, component_report
from highrank.analysis.divergence import Divergence, expected_divergence
from highrank.environment import Environment, environment, free_memory
from highrank.predictor import (
    LONG_HISTORY,
    Contexts,
    Predictor,
    choose_windows,
    read_contexts,
)
from highrank.progress import OnProgress
from highrank.studies.audit.answer import Answer, answer_of, joint_answer
from highrank.studies.audit.fit import (
    QUICK_SECONDS,
    SECONDS,
    FitFacts,
    fit_heads,
)
from highrank.studies.audit.layer import HeadFacts, Layer, layer_of
from highrank.studies.audit.model import AuditedModel, Source, TextFacts
from highrank.studies.audit.rank import (
    Baseline,
    RankFacts,
    audit_rank,
    plan_spectrum,
    random_baseline,
)
from highrank.studies.audit.samples import read_material, why_not
from highrank.studies.audit.tokens import (
    UnargmaxableFacts,
    UndertrainedFacts,
    audit_unargmaxable,
    audit_undertrained,
)

NUM_CONTEXTS, QUICK_CONTEXTS = 2_000, 500
# What an audit may use beside the model, unless half of what is free is less.
MAX_BYTES = 4 * 2**30
# About how long the parts of an audit take, for the progress bar.
COSTS = {
    "contexts": 0.25,
    "rank": 0.3,
    "baseline": 0.1,
    "divergence": 0.1,
    "unargmaxable": 0.15,
    "mixture": 0.1,
}
# A fit takes about as long as the rest.
FIT_COST = 0.5
# Tokens of a context that are written out.
NUM_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class ModelAudit:
    name: str
    """As the user gave it."""
    answer: Answer
    source: Source
    architecture: str
    """As "AWD-LSTM" or "GPT2LMHeadModel"."""
    num_parameters: int
    """A tied embedding counts once."""
    head: HeadFacts
    text: TextFacts
    rank: RankFacts
    divergence: Divergence
    """How far apart the predictions of two contexts are on average, in nats."""
    baseline: Baseline
    unargmaxable: UnargmaxableFacts | None
    unargmaxable_note: str
    """Why `unargmaxable` is None; empty if it is there."""
    undertrained: UndertrainedFacts | None
    """None for heads without one vector per token."""
    mixture: ComponentReport | None
    """None for heads with one component."""
    fit: FitFacts | None
    fit_note: str
    """Why `fit` is None; empty if it is there."""
    elapsed: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    answer: str
    """The sentence of a model, or which of several have which answer."""
    quick: bool
    num_contexts: int
    """How many contexts were asked for; a short text may have fewer."""
    elapsed: float
    """Seconds."""
    environment: Environment
    models: tuple[ModelAudit, ...]
    """In the order in which they were named."""


def run_audit(
    models: Sequence[AuditedModel],
    *,
    num_contexts: int | None = None,
    quick: bool = False,
    fit: bool = True,
    on_progress: OnProgress | None = None,
    on_model: Callable[[AuditResult], None] | None = None,
) -> AuditResult:
    """Audit each of the models.

    Args:
        num_contexts: T at most; 2,000 if None, or 500 if quick.
        quick: fewer contexts, and a sample of the tokens where all would take long.
        fit: fit heads to the hidden states, which answers what a spectrum cannot; a minute.
        on_progress: called with the fraction of the work done and what is being done.
        on_model: called after each model with what has been found so far.
    """
    if not models:
        raise ValueError("models must have at least one, got none")
    T = num_contexts or (QUICK_CONTEXTS if quick else NUM_CONTEXTS)
    for model in models:
        choose_windows(len(model.tokens), T, model.window)
    start = time.monotonic()
    show = on_progress or (lambda fraction, text: None)
    result = AuditResult(
        answer="", quick=quick, num_contexts=T, elapsed=0.0, environment=environment(), models=()
    )
    for i, model in enumerate(models):
        title = f"{model.name}: " if len(models) > 1 else ""
        part = _part(show, i / len(models), 1 / len(models), title)
        done = (*result.models, audit_model(model, T, quick, part, fit))
        answer = joint_answer([m.name for m in done], [m.answer for m in done])
        elapsed = time.monotonic() - start
        result = replace(result, answer=answer, models=done, elapsed=elapsed)
        if on_model is not None:
            on_model(result)
    return result


def audit_model(
    model: AuditedModel, num_contexts: int, quick: bool, on_progress: OnProgress, fit: bool = True
) -> ModelAudit:
    start = time.monotonic()
    on_progress(0.0, "loading")
    on_all = on_progress
    predictor = model.model.load(model.device)
    architecture, num_parameters = predictor.architecture, predictor.num_parameters
    fit_note = why_not(predictor, model) if fit else "no heads were fitted (--no-fit)"
    fitting = _part(on_progress, 1 - FIT_COST, FIT_COST, "fit: ")
    if not fit_note:
        on_progress = _part(on_progress, 0.0, 1 - FIT_COST, "")
    parts = _parts(on_progress)
    layer, contexts = _read(model, predictor, num_contexts, parts["contexts"])
    material = None if fit_note else read_material(predictor, model)
    # Only the output layer is needed from here on.
    del predictor
    hidden, budget = contexts.hidden, memory_budget()
    plan = plan_spectrum(layer, len(hidden), quick, budget)
    rank = audit_rank(layer, hidden, plan, parts["rank"])
    baseline = random_baseline(layer, hidden, plan, parts["baseline"])
    target = torch.tensor([int(model.tokens[p + 1]) for p in contexts.positions])
    divergence, nats, shuffled = _predictions(layer, hidden, target, parts["divergence"])
    text = model.facts(len(hidden), nats, shuffled)
    unargmaxable, note = audit_unargmaxable(
        layer.vectors, model.model.token, quick, budget, parts["unargmaxable"]
    )
    mixture = None
    if layer.mixture is not None:
        mixture = component_report(
            layer.mixture,
            hidden,
            token=model.model.token,
            context=lambda row: model.context(int(contexts.positions[row]), NUM_SHOWN),
            on_progress=parts["mixture"],
        )
    fitted = None
    if material is not None:
        seconds = QUICK_SECONDS if quick else SECONDS
        fitted = fit_heads(
            material.head,
            material.samples,
            part=material.part,
            seconds=seconds,
            on_progress=fitting,
        )
    on_all(1.0, "done")
    return ModelAudit(
        name=model.name,
        answer=answer_of(layer.facts, text, rank, mixture, fitted, fit_note, model.source),
        source=model.source,
        architecture=architecture,
        num_parameters=num_parameters,
        head=layer.facts,
        text=text,
        rank=rank,
        divergence=divergence,
        baseline=baseline,
        unargmaxable=unargmaxable,
        unargmaxable_note=note,
        undertrained=audit_undertrained(layer.head, model),
        mixture=mixture,
        fit=fitted,
        fit_note=fit_note,
        elapsed=time.monotonic() - start,
    )


def _read(
    model: AuditedModel, predictor: Predictor, num_contexts: int, on_progress: OnProgress
) -> tuple[Layer, Contexts]:
    largest, V = int(max(model.tokens)), predictor.head.vocab_size
    if largest >= V:
        raise ValueError(
            f"the tokens of {model.name} must be below its vocabulary size {V:,}, got {largest:,}"
        )
    reader = predictor.without_state()
    contexts = read_contexts(
        reader.hidden_states,
        model.tokens,
        num_contexts,
        window=model.window,
        history=LONG_HISTORY if predictor.head.is_stateful else None,
        on_progress=on_progress,
    )
    if not contexts.hidden.isfinite().all():
        raise ValueError(f"the hidden states of {model.name} must be finite, got others")
    return layer_of(predictor, None if reader is predictor else reader.head), contexts


def memory_budget() -> int:
    """Bytes that an audit may use: half of the free memory, at most 4 GiB."""
    free = free_memory()
    return MAX_BYTES if free is None else min(MAX_BYTES, free // 2)


def _predictions(
    layer: Layer, hidden: Tensor, target: Tensor, on_progress: OnProgress
) -> tuple[Divergence, float, float]:
    """The divergence, and the mean loss of the targets (T,) and of shuffled ones, in one pass."""
    # Half of the contexts apart, what follows one has little to do with the other.
    targets = torch.stack([target, target.roll(max(1, len(target) // 2))], 1)  # (T, 2)
    source, losses = layer.log_probs(hidden, torch.float32), []

    def make_blocks() -> Iterator[Tensor]:
        row = 0
        for block in source.make_blocks():  # (n, V)
            losses.append(-block.gather(1, targets[row : row + len(block)]).double())  # (n, 2)
            row += len(block)
            yield block

    watched = replace(source, make_blocks=make_blocks)
    divergence = expected_divergence(watched, on_progress=on_progress)
    nats, shuffled = torch.cat(losses).T.contiguous()  # (T,)
    return divergence, nats.mean().item(), shuffled.mean().item()


def _parts(on_progress: OnProgress) -> dict[str, OnProgress]:
    parts, before = {}, 0.0
    for name, cost in COSTS.items():
        parts[name] = _part(on_progress, before, cost, f"{name}: ")
        before += cost
    return parts


def _part(on_progress: OnProgress, before: float, size: float, title: str) -> OnProgress:
    return lambda fraction, text: on_progress(min(1.0, before + fraction * size), title + text)
