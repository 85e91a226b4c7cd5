"""Pictures of a comparison: learning curves, rank and loss, cost, and what K or d does."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import fmean

from highrank.report.figure import DASHED, Axis, Lines, Mark, Series, Style, line_style
from highrank.report.formats import perplexity
from highrank.report.token_axis import against_tokens
from highrank.studies.compare.plan import Regime
from highrank.studies.compare.record import RunRecord, break_even, curves_of, loss_at, mean_loss_at
from highrank.studies.compare.result import CompareResult, RegimeResult, Row, VariantResult
from highrank.studies.compare.variant import Role

COLORS = [f"series-{n}" for n in range(1, 7)]
MARKERS = "sD^vPXo"
# Of networks, where there are several.
DASHES = ("-", DASHED, (0, (1, 1.4)))
CONTROL = line_style("truth", marker="o", linewidth=4.0, markersize=8.0)
POINT: Style = {"markersize": 9.0}
# Points of a learning curve, as far apart as validations; earlier ones would hide the differences.
FACTOR, NUM_POINTS = 2**0.5, 8
TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)


class Sweep(StrEnum):
    """The field that variants differ in."""

    COMPONENTS = "num_components"
    SIZE = "embedding_size"

    def x(self, variant: VariantResult) -> int:
        return int(getattr(variant, self))


TITLES = {Sweep.COMPONENTS: "components, K", Sweep.SIZE: "d"}
# With fewer different values there is nothing to see.
FEWEST = {Sweep.COMPONENTS: 3, Sweep.SIZE: 2}
Measure = Callable[[RunRecord, Regime], float | None]
# Of a run, drawn against K or d, besides the loss, where they are known.
MEASURES: dict[str, Measure] = {
    "gap: valid − train, nats": lambda run, regime: (
        run.marks[regime].gap if regime in run.marks else None
    ),
    "effective rank, ε = 10⁻³": lambda run, regime: run.analysis.get("effective_rank_1e-3"),
    "CPU ms per token": lambda run, regime: (
        run.cpu_seconds / run.tokens * 1e3 if run.tokens else None
    ),
    "I(component; token), nats": lambda run, regime: run.analysis.get("specialisation"),
}


def styles(result: CompareResult) -> dict[str, Style]:
    """The style of each variant, the same in every picture: controls are broad and grey.

    A head has the same colour on every network, and a network the same dashes.
    """
    networks = list(dict.fromkeys(variant.network for variant in result.variants))
    others = [one for one in result.variants if one.role is not Role.CONTROL]
    heads = list(dict.fromkeys(map(_head, others)))
    found = {}
    for variant in result.variants:
        is_control = variant.role is Role.CONTROL
        count = 0 if is_control else heads.index(_head(variant))
        dashes: Style = {"linestyle": DASHED} if count >= len(COLORS) else {}
        if len(networks) > 1:
            dashes = {"linestyle": DASHES[networks.index(variant.network)]}
        found[variant.name] = (CONTROL if is_control else _style(count)) | dashes
    return found


def _head(variant: VariantResult) -> tuple[str, int, int]:
    return variant.spec, variant.num_components, variant.embedding_size


def label(variant: VariantResult, result: CompareResult) -> str:
    """With d where variants differ in it."""
    has_sizes = len({one.embedding_size for one in result.variants}) > 1
    return f"{variant.label}, d = {variant.embedding_size}" if has_sizes else variant.label


def _perplexity_axis(values: Sequence[float]) -> Axis:
    """A logarithmic axis with the round numbers around the data."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [tick * 10.0**power for power in powers for tick in TICKS]
    inside = tuple(tick for tick in ticks if low * 0.98 <= tick <= high * 1.02)
    shown = inside[:: math.ceil(len(inside) / 7) or 1]
    return Axis(label="perplexity, valid", is_log=True, ticks=shown if len(shown) > 1 else None)


def learning_charts(result: CompareResult) -> list[Lines]:
    """The best loss on valid against tokens and CPU seconds: means and range of seeds."""
    by_tokens: list[Series] = []
    by_time: list[Series] = []
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
        y = [perplexity(mean_loss_at(curves, tokens)) for tokens in grid]
        each = [[perplexity(loss_at(curve, tokens)) for curve in curves] for tokens in grid]
        line = Series(
            label=label(variant, result),
            x=grid,
            y=y,
            style=styles(result)[variant.name],
            band=[(min(values), max(values)) for values in each] if len(curves) > 1 else (),
        )
        by_tokens.append(line)
        seconds = variant.cpu_per_token or 0.0
        by_time.append(replace(line, x=[tokens * seconds for tokens in grid]))
    if not by_tokens:
        return []
    axis = _perplexity_axis([y for line in by_time for y in (*line.y, *sum(line.band, ()))])
    x = Axis(label="CPU seconds of training", is_log=True)
    return [
        against_tokens(by_tokens, axis, what="tokens read", is_log=True),
        Lines(series=tuple(by_time), x=x, y=axis),
    ]


def rank_chart(result: CompareResult, regime: RegimeResult) -> Lines | None:
    """Loss on valid against ε-effective rank, a point for each variant."""
    rows, look = {row.name: row for row in regime.rows}, styles(result)
    series = tuple(
        Series(
            label=label(variant, result),
            x=[rank],
            y=[perplexity(rows[variant.name].valid_loss)],
            style=look[variant.name] | POINT,
            intervals=[_interval(rows[variant.name])],
        )
        for variant in result.variants
        if variant.name in rows and (rank := variant.analysis.get("effective_rank_1e-3"))
    )
    if len(series) < 2:
        return None
    return Lines(
        series=series,
        x=Axis(label="effective rank, ε = 10⁻³", is_log=True),
        y=_perplexity_axis([y for line in series for y in (*line.y, *line.intervals[0])]),
    )


def cost_chart(result: CompareResult) -> Lines | None:
    """The gain of each head at equal tokens against its time, and what would pay for that time."""
    regime = result.at_equal_tokens
    if regime is None or not result.costs:
        return None
    curves, look = curves_of(result.runs, result.control.name), styles(result)
    # Other networks have controls of their own: their costs are in the table.
    own = {one.name for one in result.variants if one.network == result.control.network}
    costs = [cost for cost in result.costs if cost.name in own]
    ratios = [cost.ratio for cost in costs]
    low, high = min(0.7, *ratios), max(1.5, *ratios)
    grid = [low * (high / low) ** (n / 20) for n in range(21)]
    line = Series(
        label="break-even",
        x=grid,
        y=[_percent_won(break_even(curves, regime.amount, ratio)) for ratio in grid],
        style=line_style("truth", linewidth=3.0, linestyle=DASHED),
    )
    contrasts = {row.name: row.valid for row in regime.rows}
    points = (
        Series(
            label=cost.label,
            x=[cost.ratio],
            y=[_percent_won(cost.gain)],
            style=look[cost.name] | POINT,
            intervals=[
                (_percent_won(-found.high), _percent_won(-found.low))
                for found in (contrasts[cost.name],)
                if found is not None
            ],
        )
        for cost in costs
    )
    return Lines(
        series=(line, *points),
        x=Axis(label="CPU time of a token ÷ the control's", is_log=True),
        y=Axis(label="perplexity won at equal tokens, %"),
        marks=(Mark(x=1.0, label="the control"),),
    )


def _percent_won(nats: float) -> float:
    return -math.expm1(-nats) * 100


def sweep_charts(result: CompareResult, regime: RegimeResult, by: Sweep) -> list[Lines]:
    """The loss on valid, with intervals, and all `MEASURES` against K or d; none if few vary."""
    rows = {row.name: row for row in regime.rows}
    groups = _groups(result, rows, by)
    if not groups:
        return []
    losses = tuple(
        Series(
            label=name,
            x=[by.x(variant) for variant in some],
            y=[perplexity(rows[variant.name].valid_loss) for variant in some],
            style=_style(count),
            intervals=[_interval(rows[variant.name]) for variant in some],
        )
        for count, (name, some) in enumerate(groups.items())
    )
    ends = [end for line in losses for pair in line.intervals for end in pair]
    values = [*ends, *(y for line in losses for y in line.y)]
    charts = [Lines(series=losses, x=_axis(losses, by), y=_perplexity_axis(values))]
    runs = [run for run in result.runs if run.seed in regime.seeds]
    for title, measure in MEASURES.items():
        values_of = {
            name: [
                value
                for run in runs
                if run.variant == name and (value := measure(run, regime.name)) is not None
            ]
            for name in rows
        }
        lines = tuple(_measured(values_of, groups, by))
        if lines:
            charts.append(Lines(series=lines, x=_axis(lines, by), y=Axis(label=title)))
    return charts


def _groups(
    result: CompareResult, rows: dict[str, Row], by: Sweep
) -> dict[str, list[VariantResult]]:
    """Variants that differ in K, or in d, alone; a control is the K = 1 of every head of its d."""
    variants = [v for v in result.variants if v.name in rows and v.role is not Role.OTHER_CONTEXT]
    controls = {(v.network, v.embedding_size): v for v in variants if v.role is Role.CONTROL}
    groups: dict[str, list[VariantResult]] = {}
    for variant in variants:
        if by is Sweep.SIZE:
            groups.setdefault(variant.label, []).append(variant)
        elif (
            variant.role is not Role.CONTROL
            and (variant.network, variant.embedding_size) in controls
        ):
            name = variant.label.replace(f", K = {variant.num_components}", "")
            name = f"{name}, d = {variant.embedding_size}"
            groups.setdefault(name, [controls[variant.network, variant.embedding_size]]).append(
                variant
            )
    counts = {name: len(set(map(by.x, some))) for name, some in groups.items()}
    if max(counts.values(), default=0) < FEWEST[by]:
        return {}
    return {name: sorted(some, key=by.x) for name, some in groups.items() if counts[name] > 1}


def _axis(lines: Sequence[Series], by: Sweep) -> Axis:
    ticks = tuple(sorted({x for line in lines for x in line.x}))
    return Axis(label=TITLES[by], is_log=True, ticks=ticks)


def _style(count: int) -> Style:
    return line_style(COLORS[count % len(COLORS)], marker=MARKERS[count % len(MARKERS)])


def _interval(row: Row) -> tuple[float, float]:
    """Interval of the perplexity, around its own value; a control has none."""
    if row.valid is None:
        here = perplexity(row.valid_loss)
        return here, here
    control = row.valid_loss - row.valid.difference
    return perplexity(control + row.valid.low), perplexity(control + row.valid.high)


def _measured(
    values: dict[str, list[float]], groups: dict[str, list[VariantResult]], by: Sweep
) -> Iterator[Series]:
    """A line for each head: means over seeds, and their range; variants without are left out."""
    for count, (name, some) in enumerate(groups.items()):
        known = [variant for variant in some if values[variant.name]]
        if known:
            each = [values[variant.name] for variant in known]
            yield Series(
                label=name,
                x=[by.x(variant) for variant in known],
                y=[fmean(found) for found in each],
                style=_style(count),
                band=[(min(found), max(found)) for found in each]
                if len(max(each, key=len)) > 1
                else (),
            )
