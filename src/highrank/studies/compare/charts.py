"""The pictures of a comparison: learning curves, rank and loss, cost."""

import math
from collections.abc import Sequence

from highrank.report.figure import Axis, Lines, Mark, Series
from highrank.report.theme import Style
from highrank.studies.compare.curve import break_even, mean_loss_at
from highrank.studies.compare.result import CompareResult, Regime, VariantResult

COLORS = [f"series-{n}" for n in range(1, 7)]
MARKERS = "sD^vPXo"
CONTROL = Style("truth", marker="o", width=4.0, marker_size=8.0)
# Of learning curves, as of the validations of a run; what came earlier would hide the differences.
FACTOR, NUM_POINTS = 2**0.5, 8
TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)


def styles(result: CompareResult) -> dict[str, Style]:
    """How each variant is drawn, the same in every picture: controls broad and grey."""
    found, count = {}, 0
    for variant in result.variants:
        if variant.role == "control":
            found[variant.name] = CONTROL
            continue
        color, marker = COLORS[count % len(COLORS)], MARKERS[count % len(MARKERS)]
        found[variant.name] = Style(color, marker=marker, is_dashed=count >= len(COLORS))
        count += 1
    return found


def label(variant: VariantResult, result: CompareResult) -> str:
    """With d where variants differ in it."""
    has_sizes = len({one.embedding_size for one in result.variants}) > 1
    return f"{variant.label}, d = {variant.embedding_size}" if has_sizes else variant.label


def perplexity_of(loss: float) -> float:
    return math.exp(min(loss, 700.0))


def perplexities(values: Sequence[float], title: str = "perplexity, valid") -> Axis:
    """A logarithmic axis with the round numbers around the data."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [tick * 10.0**power for power in powers for tick in TICKS]
    inside = tuple(tick for tick in ticks if low * 0.98 <= tick <= high * 1.02)
    ticks_shown = inside[:: max(1, len(inside) // 7)]
    return Axis(label=title, is_log=True, ticks=ticks_shown if len(ticks_shown) > 1 else None)


def learning_chart(result: CompareResult, by: str) -> Lines | None:
    """The best loss on valid against million tokens, or against CPU seconds; means over seeds."""
    series = []
    for variant in result.variants:
        own = [run for run in result.runs if run.variant == variant.name and run.curve]
        # A run that has just begun would cut the others short.
        curves = [run.curve for run in own if run.marks] or [run.curve for run in own]
        if not curves:
            continue
        last = min(curve[-1].tokens for curve in curves)
        first = max(curve[0].tokens for curve in curves)
        grid = [last * FACTOR**-n for n in reversed(range(NUM_POINTS))]
        grid = [tokens for tokens in grid if tokens >= first * 0.999]
        price = 1e-6 if by == "tokens" else variant.cpu_per_token or 0.0
        series.append(
            Series(
                label=label(variant, result),
                x=[tokens * price for tokens in grid],
                y=[perplexity_of(mean_loss_at(curves, tokens)) for tokens in grid],
                style=styles(result)[variant.name],
            )
        )
    if not series:
        return None
    title = "million tokens read" if by == "tokens" else "CPU seconds of training"
    return Lines(
        series=tuple(series),
        x=Axis(label=title, is_log=True),
        y=perplexities([y for line in series for y in line.y]),
    )


def rank_chart(result: CompareResult, regime: Regime) -> Lines | None:
    """Loss on valid against ε-effective rank, a point for each variant."""
    rows = {row.name: row for row in regime.rows}
    look = styles(result)
    series = tuple(
        Series(
            label=label(variant, result),
            x=[rank],
            y=[perplexity_of(rows[variant.name].valid_loss)],
            style=look[variant.name],
        )
        for variant in result.variants
        if variant.name in rows and (rank := variant.analysis.get("effective_rank_1e-3"))
    )
    if len(series) < 2:
        return None
    return Lines(
        series=series,
        x=Axis(label="effective rank, ε = 10⁻³", is_log=True),
        y=perplexities([line.y[0] for line in series]),
    )


def cost_chart(result: CompareResult) -> Lines | None:
    """What each head wins at equal tokens against its time, and what would pay for that time."""
    regime = next((one for one in result.regimes if one.name == "tokens"), None)
    control = next((variant for variant in result.variants if variant.role == "control"), None)
    if regime is None or control is None or not result.costs:
        return None
    curves = [run.curve for run in result.runs if run.variant == control.name and run.curve]
    ratios = [cost.ratio for cost in result.costs]
    low, high = min(0.7, *ratios), max(1.5, *ratios)
    grid = [low * (high / low) ** (n / 20) for n in range(21)]
    look = styles(result)
    line = Series(
        label="break-even",
        x=grid,
        y=[_percent(break_even(curves, regime.amount, ratio)) for ratio in grid],
        style=Style("truth", width=3.0, is_dashed=True),
    )
    points = (
        Series(label=cost.label, x=[cost.ratio], y=[_percent(cost.gain)], style=look[cost.name])
        for cost in result.costs
    )
    return Lines(
        series=(line, *points),
        x=Axis(label="CPU time of a token ÷ the control's", is_log=True),
        y=Axis(label="perplexity won at equal tokens, %"),
        marks=(Mark(x=1.0, label="the control"),),
    )


def _percent(nats: float) -> float:
    return -math.expm1(-nats) * 100
