"""What `highrank compare` prints: the plan before, tables after."""

import math
import statistics
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table

from highrank.analysis.contrasts import Contrast
from highrank.report.formats import duration, make_table
from highrank.studies.compare.answer import TITLES, amount_text, percent
from highrank.studies.compare.curve import break_even
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.result import CompareResult, Regime

# Nats that twice the tokens would win, and seconds for each CPU second, that a reader is told of.
WORTH_MORE, MUCH_WAITING = 0.05, 1.3
VERDICTS = {"better": "better", "worse": "worse", "no difference seen": "none seen"}


def plan_table(plan: Plan) -> RenderableType:
    """The variants, how fast they are, and how long everything takes."""
    titles = ("D", "layers", "parameters", "tokens/CPU s", "CPU s", "minutes")
    table = make_table(("variant", "d"), titles, title="The plan")
    for index, (variant, speed) in enumerate(zip(plan.variants, plan.speeds, strict=True)):
        table.add_row(
            variant.label,
            str(variant.embedding_size),
            str(variant.context_size),
            "-".join(map(str, variant.config.model.hidden_sizes)),
            f"{variant.num_parameters:,}",
            f"{1 / speed.cpu:,.0f}",
            f"{plan.cpu_of(index):,.0f}",
            f"{plan.seconds_of(index) / 60:.1f}",
        )
    tokens = f"{plan.num_tokens:,} tokens"
    time = "" if plan.cpu_seconds is None else f", and at {plan.cpu_seconds:,.0f} CPU seconds"
    text = (
        f"{len(plan.variants)} variants × {len(plan.seeds)} seeds, measured at {tokens}{time} of "
        f"training each; {plan.jobs} at a time, with a reserve: about {duration(plan.seconds)}. "
        "CPU s and minutes are those of one run."
    )
    return Group(table, text)


def compare_table(result: CompareResult) -> RenderableType:
    """The answer, a table for each regime, costs, the recommendation."""
    return Group(result.answer, "", *_parts(result))


def _parts(result: CompareResult) -> Iterator[RenderableType]:
    for regime in result.regimes:
        yield _regime_table(regime)
        yield regime_note(regime)
        yield ""
    if result.regimes:
        yield _variant_table(result)
    if result.costs:
        yield _cost_table(result)
    yield from notes(result)
    if result.recommendation is not None:
        found = result.recommendation
        yield f"Recommended: {found.text}, because {found.evidence}."
        yield f"What it is: {found.description}"
        if found.command:
            yield f"Train it in full, at a rate that is annealed: {found.command}"


def _regime_table(regime: Regime) -> Table:
    title = f"{TITLES[regime.name].capitalize()}, {amount_text(regime)}: perplexities"
    numbers = ("valid", "test", "valid − control, %", "test − control, %")
    table = make_table(("head", "d", "on valid"), numbers, title=title)
    for row in regime.rows:
        table.add_row(
            row.label,
            str(row.embedding_size),
            "–" if row.valid is None else VERDICTS[row.valid.verdict],
            perplexity(row.valid_loss, row.valid_deviation),
            perplexity(row.test_loss, row.test_deviation),
            relative(row.valid),
            "–" if row.test is None else f"{math.expm1(row.test.difference) * 100:+.1f}",
        )
    return table


def _variant_table(result: CompareResult) -> Table:
    titles = ("layers", "parameters", "tokens", "CPU s", "gap", "rank ε=10⁻³", "I(k; token)")
    table = make_table(
        ("head", "d"), titles, title=f"Variants at {TITLES[result.regimes[-1].name]}"
    )
    for row in variant_rows(result):
        table.add_row(*row)
    return table


def variant_rows(result: CompareResult) -> list[tuple[str, ...]]:
    """Sizes, and what was measured besides the loss, in the last regime."""
    rows = {row.name: row for row in result.regimes[-1].rows}
    found: list[tuple[str, ...]] = []
    for variant in result.variants:
        row, rank = rows.get(variant.name), variant.analysis.get("effective_rank_1e-3")
        information = variant.analysis.get("specialisation")
        measured = ("–", "–", "–")
        if row is not None:
            measured = (f"{row.tokens:,.0f}", f"{row.cpu_seconds:,.0f}", f"{row.gap:.2f}")
        found.append(
            (
                variant.label,
                str(variant.embedding_size),
                "-".join(map(str, variant.hidden_sizes)),
                f"{variant.num_parameters:,}",
                *measured,
                "–" if rank is None else f"{rank:.0f}",
                "–" if information is None else f"{information:.2f}",
            )
        )
    return found


def perplexity(loss: float, deviation: float | None) -> str:
    """ "142.1 ± 1.3": the mean of losses as perplexity, and their standard deviation."""
    value = math.exp(min(loss, 700.0))
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {value * deviation:.2f}"


def relative(contrast: Contrast | None) -> str:
    """Perplexity relative to the control's, with its interval, in percent."""
    if contrast is None:
        return "–"
    values = (contrast.difference, contrast.low, contrast.high)
    found = [f"{math.expm1(value) * 100:+.1f}" for value in values]
    return f"{found[0]} ({found[1]} … {found[2]})"


def regime_note(regime: Regime) -> str:
    """What the intervals are, and what they could have found."""
    if regime.error is None or regime.detectable is None:
        return "One seed: no interval, and no winner."
    correction = "Dunnett's" if regime.is_pooled else "Holm's, as errors of variants differ"
    return (
        f"Mean ± standard deviation over {len(regime.seeds)} seeds. Intervals: 95 %, paired by "
        f"seed, {regime.degrees} degrees of freedom, corrected for the number of heads "
        f"({correction}). Noise of one run: {percent(regime.error)} of its perplexity. The "
        f"smallest difference that would be found in 80 % of comparisons: "
        f"{percent(regime.detectable)}."
    )


def _cost_table(result: CompareResult) -> Table:
    table = make_table(
        ("head", "verdict"),
        ("CPU time ÷ control", "wins, nats", "must win, nats"),
        title="Does it pay for its time? By the control's own learning curve, at equal tokens",
    )
    for row in cost_rows(result):
        table.add_row(*row)
    return table


def cost_rows(result: CompareResult) -> list[tuple[str, ...]]:
    return [
        (
            cost.label,
            cost.verdict,
            f"{cost.ratio:.2f}",
            f"{cost.gain:+.4f}",
            f"{cost.needed:+.4f}",
        )
        for cost in result.costs
    ]


def notes(result: CompareResult) -> list[str]:
    """What a reader must know of single runs."""
    found = []
    for variant in result.variants:
        where = f"{variant.label} (d = {variant.embedding_size})"
        if variant.num_diverged:
            found.append(f"Diverged: {variant.num_diverged} runs of {where}; it is left out.")
        if variant.num_disturbed:
            found.append(
                f"Disturbed: {variant.num_disturbed} runs of {where} waited for the processor, or "
                "changed their speed, more than the others: do not trust their time."
            )
    found += [*_length(result), *_load(result)]
    if not result.is_complete:
        found.append(f"Unfinished. Resume with: highrank compare --resume {result.folder}")
    return found


def _length(result: CompareResult) -> Iterator[str]:
    """How far the runs are from their end."""
    regime = next((one for one in result.regimes if one.name == "tokens"), None)
    control = next((variant for variant in result.variants if variant.role == "control"), None)
    if regime is None or control is None:
        return
    curves = [run.curve for run in result.runs if run.variant == control.name and run.curve]
    if not curves:
        return
    more = break_even(curves, regime.amount, 2.0)
    if more >= WORTH_MORE:
        yield (
            f"At equal tokens each run has read {regime.amount / result.num_train:.2g} times the "
            f"{result.num_train:,} training tokens. Twice as many would lower the control's "
            f"perplexity by about {percent(-more)}, and may change the order: give it a larger "
            "--budget before you rely on it."
        )


def _load(result: CompareResult) -> Iterator[str]:
    """A note if other programs used the machine."""
    waiting = [run.waiting for run in result.runs if run.cpu_seconds > 0]
    if waiting and statistics.median(waiting) > MUCH_WAITING:
        yield (
            f"The machine was busy: a second of CPU time took {statistics.median(waiting):.1f} "
            "seconds. When it is quiet, the same budget trains longer."
        )
