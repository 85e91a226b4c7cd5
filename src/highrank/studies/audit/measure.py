"""`highrank audit`: what an output layer can express, and what it does on a text.

T contexts, V vocabulary, D hidden size, E embedding size, n rows of a block.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from highrank.analysis.components import component_report
from highrank.analysis.divergence import Divergence, expected_divergence
from highrank.analysis.unargmaxable import TokenVerdict, Verdict, decide_tokens
from highrank.analysis.unargmaxable.certificate import Proof
from highrank.analysis.unargmaxable.problem import Box
from highrank.environment import environment, free_memory, install_hint
from highrank.studies.audit.answer import answer_of, joint_answer
from highrank.studies.audit.control import random_control
from highrank.studies.audit.layer import Layer, OnProgress, Vectors, audit_rank, plan_spectrum
from highrank.studies.audit.model import (
    AuditedModel,
    Contexts,
    LoadedModel,
    choose_windows,
    read_contexts,
)
from highrank.studies.audit.result import (
    AuditResult,
    ModelAudit,
    TextFacts,
    UnargmaxableFacts,
    UnargmaxableToken,
)

NUM_CONTEXTS, QUICK_CONTEXTS = 2_000, 500
# What an audit may use beside the model, unless half of what is free is less.
MAX_BYTES = 4 * 2**30
# About how long the parts of an audit take, for the progress bar.
COSTS = {
    "contexts": 0.25,
    "rank": 0.3,
    "control": 0.1,
    "divergence": 0.1,
    "unargmaxable": 0.15,
    "mixture": 0.1,
}
# Tokens of a context that are written out.
NUM_SHOWN = 12
# Copies of the output embedding, in float64, that deciding its tokens takes.
COPIES = 5
# Multiplies of one look at all tokens, V² E, that a quick audit does: some seconds.
QUICK_MULTIPLIES = 2e10
# Of larger heads it samples so many tokens. These, or all of a smaller head, get so long.
QUICK_SAMPLE, QUICK_SECONDS = 500, 15.0
# Tokens of a proof that are named.
NUM_BETWEEN = 5


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
        quick: fewer contexts, and a sample of the tokens where all would take long.
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
        done = (*result.models, audit_model(model, T, quick, part))
        answer = joint_answer([m.name for m in done], [m.answer for m in done])
        elapsed = time.monotonic() - start
        result = replace(result, answer=answer, models=done, elapsed=elapsed)
        if on_model is not None:
            on_model(result)
    return result


def audit_model(
    model: AuditedModel, num_contexts: int, quick: bool, on_progress: OnProgress
) -> ModelAudit:
    start, parts = time.monotonic(), _parts(on_progress)
    on_progress(0.0, "loading")
    loaded = model.load()
    layer, architecture = loaded.layer, loaded.architecture
    num_parameters = loaded.num_parameters
    contexts = _contexts(model, loaded, num_contexts, parts["contexts"])
    # Only the output layer is needed from here on.
    del loaded
    hidden, budget = contexts.hidden, memory_budget()
    plan = plan_spectrum(layer, len(hidden), quick, budget)
    rank = audit_rank(layer, hidden, plan, parts["rank"])
    control = random_control(layer, hidden, plan, parts["control"])
    target = torch.tensor([int(model.tokens[p + 1]) for p in contexts.positions])
    divergence, nats, shuffled = _predictions(layer, hidden, target, parts["divergence"])
    text = _text(model, len(hidden), nats, shuffled)
    unargmaxable, note = audit_unargmaxable(
        layer.vectors, model.token, quick, budget, parts["unargmaxable"]
    )
    mixture = None
    if layer.mixture is not None:
        mixture = component_report(
            layer.mixture,
            hidden,
            token=model.token,
            context=lambda row: _written(model, int(contexts.positions[row])),
            on_progress=parts["mixture"],
        )
    on_progress(1.0, "done")
    return ModelAudit(
        name=model.name,
        answer=answer_of(layer.facts, text, rank, mixture),
        source=model.source,
        architecture=architecture,
        num_parameters=num_parameters,
        head=layer.facts,
        text=text,
        rank=rank,
        divergence=divergence,
        control=control,
        unargmaxable=unargmaxable,
        unargmaxable_note=note,
        mixture=mixture,
        elapsed=time.monotonic() - start,
    )


def audit_unargmaxable(
    vectors: Vectors | None,
    token: Callable[[int], str],
    quick: bool,
    budget: int,
    on_progress: OnProgress,
) -> tuple[UnargmaxableFacts | None, str]:
    """What is known of all tokens, or None and why.

    Args:
        token: the text of a token.
        budget: bytes that may be used.
    """
    if vectors is None:
        return None, "not decided, as no single logit decides which token is the most likely"
    if find_spec("scipy") is None:
        return None, f"not decided, as linear programs need scipy: {install_hint('cli')}"
    V, E = vectors.weight.shape
    if (needed := 8 * COPIES * V * E) > budget:
        return None, f"not decided, as it would take {needed / 2**30:.1f} GiB of memory"
    start = time.perf_counter()
    verdicts = decide_tokens(
        vectors.weight,
        vectors.bias,
        vectors.states,
        num_sampled=QUICK_SAMPLE if quick and V * V * E > QUICK_MULTIPLIES else None,
        seconds=QUICK_SECONDS if quick else None,
        on_progress=on_progress,
    )
    return _facts(verdicts, vectors, token, time.perf_counter() - start), ""


def _facts(
    verdicts: Sequence[TokenVerdict], vectors: Vectors, token: Callable[[int], str], elapsed: float
) -> UnargmaxableFacts:
    by_verdict: dict[Verdict, list[TokenVerdict]] = {verdict: [] for verdict in Verdict}
    for verdict in verdicts:
        by_verdict[verdict.verdict].append(verdict)
    num_tied, num_untried = len(by_verdict[Verdict.TIED]), sum(v.is_untried for v in verdicts)
    return UnargmaxableFacts(
        states=_states(vectors),
        num_argmaxable=len(by_verdict[Verdict.ARGMAXABLE]) + num_tied,
        num_tied=num_tied,
        num_unargmaxable=len(by_verdict[Verdict.UNARGMAXABLE]),
        num_undecided=len(by_verdict[Verdict.UNDECIDED]) - num_untried,
        num_untried=num_untried,
        unargmaxable=tuple(_token(v, token) for v in by_verdict[Verdict.UNARGMAXABLE]),
        elapsed=elapsed,
    )


def _states(vectors: Vectors) -> str:
    if isinstance(vectors.states, Box):
        bound = vectors.states.bound
        return f"all states between -{bound:g} and {bound:g} in each number"
    return f"all vectors of {vectors.weight.shape[1]:,} numbers"


def _token(verdict: TokenVerdict, token: Callable[[int], str]) -> UnargmaxableToken:
    proof = verdict.certificate
    assert isinstance(proof, Proof), verdict
    heaviest = proof.weights.argsort(descending=True)[:NUM_BETWEEN]
    return UnargmaxableToken(
        token=token(verdict.token),
        index=verdict.token,
        is_exact=proof.is_exact,
        # Forbidden tokens have −inf, which JSON cannot express.
        lead=max(proof.lead, -1e308),
        between=tuple(token(index) for index in proof.tokens[heaviest].tolist()),
    )


def memory_budget() -> int:
    """Bytes that an audit may use: half of the free memory, at most 4 GiB."""
    free = free_memory()
    return MAX_BYTES if free is None else min(MAX_BYTES, free // 2)


def _contexts(
    model: AuditedModel, loaded: LoadedModel, num_contexts: int, on_progress: OnProgress
) -> Contexts:
    largest, V = int(max(model.tokens)), loaded.layer.facts.vocab_size
    if largest >= V:
        raise ValueError(
            f"the tokens of {model.name} must be below its vocabulary size {V:,}, got {largest:,}"
        )
    contexts = read_contexts(
        loaded.hidden_states,
        model.tokens,
        num_contexts,
        window=model.window,
        history=model.history,
        on_progress=on_progress,
    )
    if not contexts.hidden.isfinite().all():
        raise ValueError(f"the hidden states of {model.name} must be finite, got others")
    return contexts


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


def _written(model: AuditedModel, position: int) -> tuple[str, str]:
    """The last tokens of the context that ends here, and the token that follows."""
    first = max(0, position + 1 - NUM_SHOWN)
    *context, following = (model.token(int(t)) for t in model.tokens[first : position + 2])
    return " ".join(context), following


def _text(model: AuditedModel, num_contexts: int, nats: float, shuffled: float) -> TextFacts:
    tokens = np.asarray(model.tokens)
    written = {int(token): model.token(int(token)) for token in np.unique(tokens)}
    digest = hashlib.sha256()
    for token in tokens.tolist():
        digest.update(written[token].encode("utf-8", "surrogatepass") + b"\n")
    return TextFacts(
        name=model.text,
        sha256=model.text_sha256,
        tokens_sha256=digest.hexdigest(),
        num_tokens=len(tokens),
        num_contexts=num_contexts,
        nats=nats,
        perplexity=math.exp(min(nats, 700.0)),
        shuffled_nats=shuffled,
        shuffled_perplexity=math.exp(min(shuffled, 700.0)),
    )


def _parts(on_progress: OnProgress) -> dict[str, OnProgress]:
    parts, before = {}, 0.0
    for name, cost in COSTS.items():
        parts[name] = _part(on_progress, before, cost, f"{name}: ")
        before += cost
    return parts


def _part(on_progress: OnProgress, before: float, size: float, title: str) -> OnProgress:
    return lambda fraction, text: on_progress(min(1.0, before + fraction * size), title + text)
