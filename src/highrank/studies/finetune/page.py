"""The terminal table and the page of a finetuning."""

from collections.abc import Callable, Sequence
from statistics import fmean

from rich.table import Table as RichTable

from highrank.report.figure import Axis, Lines, Series, describe, draw, to_svg
from highrank.report.formats import duration, environment_text, make_table, with_error
from highrank.report.page import Column, Figure, Table, render
from highrank.report.theme import Style
from highrank.studies.finetune.result import (
    Arm,
    FinetuneResult,
    Mean,
    Point,
    Row,
    of_variant,
)
from highrank.studies.finetune.settings import LINEAR, SOFTMAX

STYLES = (
    Style("series-1", marker="o"),
    Style("series-3", marker="D"),
    Style("series-2", marker="s"),
    Style("series-4", marker="^"),
    Style("series-5", marker="v"),
)
ROWS = (
    "parameters",
    "ms per step",
    "nats, equal tokens",
    "– below softmax",
    "nats, equal time",
    "– below softmax",
    "JS divergence",
    "collapsed",
)
CAPTION = (
    "Nats per held-out token (valid split, averaged weights), mean ± standard error over seeds; "
    "below softmax: of the same seed, + is better. JS divergence: Jensen-Shannon, mean of two "
    "components, nats; collapsed: components that predict as another does; both at the end."
)


def finetune_table(result: FinetuneResult) -> RichTable:
    """One column per variant."""
    names = [_name(variant) for variant in result.settings.variants]
    caption = f"{CAPTION} {_where(result)}"
    table = make_table(("",), names, title=answer(result), caption=caption)
    for cells in _cells(result):
        table.add_row(*cells)
    return table


def finetune_page(result: FinetuneResult, command: str) -> str:
    """The page as HTML."""
    names = [_name(variant) for variant in result.settings.variants]
    columns = (Column("", is_number=False), *map(Column, names))
    return render(
        "studies/finetune/page.html.j2",
        title="A mixture for a pretrained model",
        answer=answer(result),
        footer=environment_text(result.environment),
        result=result,
        command=command,
        where=_where(result),
        table=Table(columns=columns, rows=tuple(_cells(result)), caption=CAPTION),
        figures=[
            Figure(svg=to_svg(draw(chart)), description=describe(chart), title=title, caption=text)
            for title, text, chart in _charts(result)
        ],
    )


def answer(result: FinetuneResult) -> str:
    """Whether a mixture is better than the softmax, at equal tokens and at equal time."""
    parts = []
    for name, found in (("tokens", result.equal_tokens), ("time", result.equal_time)):
        rows = [row for row in found.rows if row.variant not in (SOFTMAX, LINEAR)]
        best = max(rows or found.rows[1:], key=_gain_of)
        parts.append(f"At equal {name} {_verdict(best)}.")
        ends = [arm.points[-1].components for arm in of_variant(result.arms, best.variant)]
    if all(end is not None and end.state == "collapsed" for end in ends):
        parts.append("Its components have collapsed: it predicts as one softmax does.")
    return " ".join(parts)


def _gain_of(row: Row) -> float:
    assert row.gain is not None
    return row.gain.value


def _verdict(row: Row) -> str:
    """Of the best mixture: two standard errors decide; one seed decides nothing."""
    gain = row.gain
    assert gain is not None
    name, amount = _name(row.variant), f"{abs(gain.value):.4f} nats per token"
    side = "below" if gain.value >= 0 else "above"
    if gain.error is None:
        return f"{name} is {amount} {side} the softmax, with one seed"
    if abs(gain.value) < 2 * gain.error:
        return (
            f"{name} does not differ from the softmax by more than two standard errors "
            f"({amount} {side} it)"
        )
    return f"{name} is {'better' if gain.value > 0 else 'worse'} than the softmax, by {amount}"


def _where(result: FinetuneResult) -> str:
    tokens, seconds = result.equal_tokens.at, result.equal_time.at
    return (
        f"Equal tokens: after {tokens:,.0f} tokens of training; equal time: after "
        f"{duration(seconds)}, as steps × the time of a step. {result.num_valid_tokens:,} "
        "held-out tokens are predicted."
    )


def _name(variant: str) -> str:
    names = {SOFTMAX: "Softmax", LINEAR: "Softmax, linear"}
    return names.get(variant, f"MoS, {variant}")


def _cells(result: FinetuneResult) -> list[tuple[str, ...]]:
    columns = []
    for by_tokens, by_time in zip(result.equal_tokens.rows, result.equal_time.rows, strict=True):
        arms = of_variant(result.arms, by_tokens.variant)
        each = result.step_seconds[by_tokens.variant]
        columns.append(
            (
                f"{arms[0].num_parameters:,}",
                "–" if each is None else f"{1e3 * each:,.0f}",
                with_error(by_tokens.nats.value, by_tokens.nats.error),
                _signed(by_tokens.gain),
                with_error(by_time.nats.value, by_time.nats.error),
                _signed(by_time.gain),
                *_components(arms, result.settings.num_components),
            )
        )
    return list(zip(ROWS, *columns, strict=True))


def _signed(gain: Mean | None) -> str:
    if gain is None:
        return "–"
    sign = "−" if gain.value < 0 else "+"
    return sign + with_error(abs(gain.value), gain.error)


def _components(arms: Sequence[Arm], num_components: int) -> tuple[str, str]:
    found = [arm.points[-1].components for arm in arms]
    last = [components for components in found if components is not None]
    if not last:
        return "–", "–"
    collapsed = fmean(components.num_collapsed for components in last)
    divergence = fmean(components.divergence for components in last)
    return f"{divergence:.3g}", f"{collapsed:.2g} of {num_components}"


def _charts(result: FinetuneResult) -> list[tuple[str, str, Lines]]:
    per_step = result.settings.batch_size * result.settings.block_length / 1e6
    nats = Axis(label="held-out nats per token")

    def seconds(arm: Arm, point: Point) -> float:
        return point.step * (result.step_seconds[arm.variant] or 0.0) / 60

    charts = [
        (
            "Equal tokens",
            "Held-out loss of the averaged weights, mean over seeds.",
            _lines(result, lambda arm, point: point.step * per_step, _nats, nats, "million tokens"),
        ),
        (
            "Equal time",
            "The same against minutes of training, evaluations left out.",
            _lines(result, seconds, _nats, nats, "minutes"),
        ),
    ]
    for title, text, label, value in (
        ("Do components differ?", "Jensen-Shannon divergence of two components.", "nats", _js),
        ("Collapsed components", "That predict as another does.", "components", _collapsed),
    ):
        axis = Axis(label=label, is_log=label == "nats", floor=1e-6)
        charts.append((title, text, _lines(result, _steps, value, axis, "steps")))
    return [chart for chart in charts if chart[2].series]


def _nats(point: Point) -> float:
    return point.valid_nats


def _js(point: Point) -> float | None:
    return None if point.components is None else point.components.divergence


def _collapsed(point: Point) -> float | None:
    return None if point.components is None else float(point.components.num_collapsed)


def _steps(arm: Arm, point: Point) -> float:
    return float(point.step)


def _lines(
    result: FinetuneResult,
    x: Callable[[Arm, Point], float],
    y: Callable[[Point], float | None],
    axis: Axis,
    label: str,
) -> Lines:
    """One line per variant: means over the seeds, at steps that all of them have."""
    series = []
    for variant, style in zip(result.settings.variants, STYLES, strict=False):
        arms = of_variant(result.arms, variant)
        curves = [{point.step: point for point in arm.points} for arm in arms]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        xs, ys = [], []
        for step in steps:
            values = [y(curve[step]) for curve in curves]
            if all(value is not None for value in values):
                xs.append(x(arms[0], curves[0][step]))
                ys.append(fmean(value for value in values if value is not None))
        if xs:
            series.append(Series(label=_name(variant), x=xs, y=ys, style=style, marker_spacing=0.1))
    return Lines(series=tuple(series), x=Axis(label=label), y=axis)
