"""What the runs of a comparison show."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from highrank.build import build_head
from highrank.data.corpus import CorpusLike
from highrank.environment import environment
from highrank.studies.compare import answer as sentences
from highrank.studies.compare.plan import Plan, plan_to_json
from highrank.studies.compare.record import RunRecord, read_runs
from highrank.studies.compare.result import CompareResult, VariantResult
from highrank.studies.compare.source import floor_of, open_source
from highrank.studies.compare.summary import summarise_costs, summarise_regime
from highrank.studies.compare.variant import Variant


def summarise(plan: Plan, folder: Path, elapsed: float = 0.0) -> CompareResult:
    """Everything that the runs in a comparison's folder show, finished or not."""
    corpus = open_source(plan.corpus, plan.max_tokens)
    runs = read_runs(plan, folder)
    found = [summarise_regime(plan, runs, regime) for regime in plan.regimes]
    regimes = tuple(regime for regime in found if regime is not None)
    costs = summarise_costs(plan, runs, found[0])
    # What is recommended reads the whole corpus.
    num_train = len(open_source(plan.corpus, None).split("train"))
    is_complete = all(run.state in ("finished", "diverged") for run in runs)
    name = Path(plan.corpus).name
    return CompareResult(
        corpus=name,
        vocab_size=len(corpus.vocabulary),
        num_train=len(corpus.split("train")),
        floor=floor_of(corpus),
        folder=str(folder),
        answer=sentences.answer(plan, regimes, is_complete, name),
        recommendation=sentences.recommend(plan, regimes, costs, num_train),
        is_complete=is_complete,
        equal=plan.equal,
        variants=tuple(_variant_result(variant, corpus, runs) for variant in plan.variants),
        regimes=regimes,
        costs=costs,
        runs=runs,
        plan=json.loads(json.dumps(plan_to_json(plan))),
        elapsed=elapsed,
        environment=environment(),
    )


def _variant_result(
    variant: Variant, corpus: CorpusLike, runs: Sequence[RunRecord]
) -> VariantResult:
    own = [run for run in runs if run.variant == variant.name]
    begun = [run for run in own if run.tokens]
    keys = sorted({key for run in own for key in run.analysis})
    return VariantResult(
        name=variant.name,
        label=variant.label,
        description=sentences.description(variant),
        spec=variant.spec,
        role=variant.role,
        embedding_size=variant.embedding_size,
        context_size=variant.context_size,
        num_components=variant.num_components,
        hidden_sizes=variant.config.model.hidden_sizes,
        num_parameters=variant.num_parameters,
        cpu_per_token=sum(r.cpu_seconds for r in begun) / sum(r.tokens for r in begun)
        if begun
        else None,
        num_disturbed=sum(run.is_disturbed for run in own),
        num_diverged=sum(run.state == "diverged" for run in own),
        num_finished=sum(run.state == "finished" for run in own),
        rank_bound=_rank_bound(variant, len(corpus.vocabulary)),
        analysis={key: _mean([run.analysis.get(key) for run in own]) for key in keys},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rank_bound(variant: Variant, vocab_size: int) -> int | None:
    with torch.device("meta"):
        return build_head(variant.config, vocab_size).rank_bound
