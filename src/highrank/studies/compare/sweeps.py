"""Pictures of what K, or d, does: to the loss, the gap, the rank, the time and the components."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from highrank.report.figure import Axis, Lines, Series
from highrank.report.theme import Style
from highrank.studies.compare.charts import COLORS, MARKERS, perplexities, perplexity_of
from highrank.studies.compare.result import CompareResult, Regime, Row, VariantResult

# With fewer different values there is nothing to see.
FEWEST = {"components": 3, "size": 2}
TITLES = {"components": "components, K", "size": "d"}


@dataclass(frozen=True)
class Measure:
    """What is drawn of each variant besides its loss."""

    label: str
    value: Callable[[VariantResult, Row], float | None]


MEASURES = (
    Measure("gap: valid − train, nats", lambda variant, row: row.gap),
    Measure(
        "effective rank, ε = 10⁻³", lambda variant, row: variant.analysis.get("effective_rank_1e-3")
    ),
    Measure(
        "CPU ms per token",
        lambda variant, row: None if variant.cpu_per_token is None else variant.cpu_per_token * 1e3,
    ),
    Measure(
        "I(component; token), nats", lambda variant, row: variant.analysis.get("specialisation")
    ),
)


def sweep_charts(result: CompareResult, regime: Regime, by: str) -> list[Lines]:
    """The loss on valid, with intervals, and all `MEASURES` against K or d; none if few vary.

    Args:
        by: "components" or "size".
    """
    rows = {row.name: row for row in regime.rows}
    groups = _groups(result, rows, by)
    if not groups:
        return []
    charts = [_loss_chart(groups, rows, by)]
    for measure in MEASURES:
        lines = tuple(_measured(measure, groups, rows, by))
        if lines:
            charts.append(Lines(series=lines, x=_axis(lines, by), y=Axis(label=measure.label)))
    return charts


def _groups(result: CompareResult, rows: dict[str, Row], by: str) -> dict[str, list[VariantResult]]:
    """Variants that differ in K, or in d, alone; a control is the K = 1 of every head of its d."""
    variants = [
        variant
        for variant in result.variants
        if variant.name in rows and variant.role != "other context"
    ]
    controls = {
        variant.embedding_size: variant for variant in variants if variant.role == "control"
    }
    groups: dict[str, list[VariantResult]] = {}
    for variant in variants:
        if by == "size":
            groups.setdefault(variant.label, []).append(variant)
        elif variant.role != "control" and variant.embedding_size in controls:
            name = variant.label.replace(f", K = {variant.num_components}", "")
            name = f"{name}, d = {variant.embedding_size}"
            groups.setdefault(name, [controls[variant.embedding_size]]).append(variant)
    found = {
        name: sorted(some, key=lambda variant: _x(variant, by)) for name, some in groups.items()
    }
    counts = {name: len({_x(variant, by) for variant in some}) for name, some in found.items()}
    if max(counts.values(), default=0) < FEWEST[by]:
        return {}
    return {name: some for name, some in found.items() if counts[name] > 1}


def _x(variant: VariantResult, by: str) -> int:
    return variant.num_components if by == "components" else variant.embedding_size


def _axis(lines: Sequence[Series], by: str) -> Axis:
    ticks = tuple(sorted({x for line in lines for x in line.x}))
    return Axis(label=TITLES[by], is_log=True, ticks=ticks)


def _style(count: int) -> Style:
    return Style(COLORS[count % len(COLORS)], marker=MARKERS[count % len(MARKERS)])


def _loss_chart(groups: dict[str, list[VariantResult]], rows: dict[str, Row], by: str) -> Lines:
    lines = tuple(
        Series(
            label=name,
            x=[_x(variant, by) for variant in some],
            y=[perplexity_of(rows[variant.name].valid_loss) for variant in some],
            style=_style(count),
            intervals=[_interval(rows[variant.name]) for variant in some],
        )
        for count, (name, some) in enumerate(groups.items())
    )
    ends = [end for line in lines for pair in line.intervals for end in pair]
    values = [*ends, *(y for line in lines for y in line.y)]
    return Lines(series=lines, x=_axis(lines, by), y=perplexities(values))


def _interval(row: Row) -> tuple[float, float]:
    """Of the perplexity, around its own value; a control has none."""
    if row.valid is None:
        here = perplexity_of(row.valid_loss)
        return here, here
    control = row.valid_loss - row.valid.difference
    return perplexity_of(control + row.valid.low), perplexity_of(control + row.valid.high)


def _measured(
    measure: Measure, groups: dict[str, list[VariantResult]], rows: dict[str, Row], by: str
) -> Iterator[Series]:
    """A line for each head; variants without this measure are left out."""
    for count, (name, some) in enumerate(groups.items()):
        pairs = [(_x(variant, by), measure.value(variant, rows[variant.name])) for variant in some]
        known = [(x, y) for x, y in pairs if y is not None]
        if known:
            yield Series(
                label=name, x=[x for x, _ in known], y=[y for _, y in known], style=_style(count)
            )
