"""The terminal table and the page of a finetuning."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from rich.table import Table as RichTable

from highrank.report.figure import Axis, Lines, Series, describe, draw, to_svg
from highrank.report.formats import duration, environment_text, make_table, with_error
from highrank.report.page import Column, Figure, Table, render
from highrank.report.theme import Style
from highrank.studies.finetune.result import (
    FinetuneResult,
    Mean,
    MixtureState,
    Point,
    Row,
    TrainedVariant,
    Verdict,
    of_variant,
)
from highrank.studies.finetune.settings import BASELINE, CONTROL

Value = Callable[[Point], float | None]
STYLES = [
    Style(f"series-{number}", marker=marker)
    for number, marker in zip((1, 3, 2, 4, 5, 6), "oDs^vP", strict=True)
]
CAPTION = (
    "Nats per held-out token (valid split, averaged weights), mean ± standard error over seeds; "
    "below softmax: of the same seed, + is better. JS divergence: Jensen-Shannon, mean of two "
    "components, nats; collapsed: components that predict as another does; both at the end."
)


def finetune_table(result: FinetuneResult) -> RichTable:
    """One column per variant."""
    names = map(_name, result.settings.variants)
    caption = f"{CAPTION} {_where(result)}"
    table = make_table(("",), names, title=answer(result), caption=caption)
    for cells in _rows(result):
        table.add_row(*cells)
    return table


def finetune_page(result: FinetuneResult, command: str) -> str:
    """The page as HTML."""
    names = map(_name, result.settings.variants)
    columns = (Column("", is_number=False), *map(Column, names))
    return render(
        "studies/finetune/page.html.j2",
        title="A mixture for a pretrained model",
        answer=answer(result),
        footer=environment_text(result.environment),
        result=result,
        command=command,
        where=_where(result),
        table=Table(columns=columns, rows=tuple(_rows(result)), caption=CAPTION),
        figures=[
            Figure(svg=to_svg(draw(chart)), description=describe(chart), title=title, caption=text)
            for title, text, chart in _charts(result)
        ],
    )


def answer(result: FinetuneResult) -> str:
    """Whether a mixture is better than the softmax, at equal tokens and at equal time."""
    parts = []
    for name, found in (("tokens", result.equal_tokens), ("time", result.equal_time)):
        rows = [row for row in found.rows if row.variant not in (BASELINE, CONTROL)]
        best = max(rows or found.rows[1:], key=lambda row: row.gain.value if row.gain else 0.0)
        parts.append(f"At equal {name} {_sentence(best)}.")
    ends = [model.points[-1].components for model in of_variant(result.variants, best.variant)]
    if all(end is not None and end.state is MixtureState.COLLAPSED for end in ends):
        parts.append("Its components have collapsed: it predicts as one softmax does.")
    return " ".join(parts)


def _sentence(row: Row) -> str:
    """How a variant compares with the softmax."""
    gain = row.gain
    assert gain is not None
    name, amount = _name(row.variant), f"{abs(gain.value):.4f} nats per token"
    side = "below" if gain.value >= 0 else "above"
    match gain.verdict:
        case None:
            return f"{name} is {amount} {side} the softmax, with one seed"
        case Verdict.NO_DIFFERENCE:
            return (
                f"{name} does not differ from the softmax by more than two standard errors "
                f"({amount} {side} it)"
            )
        case verdict:
            return f"{name} is {verdict} than the softmax, by {amount}"


def _where(result: FinetuneResult) -> str:
    tokens, seconds = result.equal_tokens.at, result.equal_time.at
    return (
        f"Equal tokens: after {tokens:,.0f} tokens of training; equal time: after "
        f"{duration(seconds)}, as steps × the time of a step. {result.num_valid_tokens:,} "
        "held-out tokens are predicted."
    )


def _name(variant: str) -> str:
    names = {BASELINE: "Softmax", CONTROL: "Softmax, linear"}
    return names.get(variant, f"MoS, {variant}")


def _rows(result: FinetuneResult) -> list[tuple[str, ...]]:
    """Each with its title first."""
    titles = ["parameters", "ms per step", "nats, equal tokens", "– below softmax"]
    titles += ["nats, equal time", "– below softmax", "JS divergence", "collapsed"]
    columns = []
    for by_tokens, by_time in zip(result.equal_tokens.rows, result.equal_time.rows, strict=True):
        models = of_variant(result.variants, by_tokens.variant)
        each = result.step_seconds[by_tokens.variant]
        columns.append(
            (
                f"{models[0].num_parameters:,}",
                "–" if each is None else f"{1e3 * each:,.0f}",
                with_error(by_tokens.nats.value, by_tokens.nats.error),
                _signed(by_tokens.gain),
                with_error(by_time.nats.value, by_time.nats.error),
                _signed(by_time.gain),
                *_components(models, result.settings.num_components),
            )
        )
    return list(zip(titles, *columns, strict=True))


def _signed(gain: Mean | None) -> str:
    if gain is None:
        return "–"
    sign = "−" if gain.value < 0 else "+"
    return sign + with_error(abs(gain.value), gain.error)


def _components(models: Sequence[TrainedVariant], num_components: int) -> tuple[str, str]:
    found = [model.points[-1].components for model in models]
    last = [components for components in found if components is not None]
    if not last:
        return "–", "–"
    collapsed = fmean(components.num_collapsed for components in last)
    divergence = fmean(components.divergence for components in last)
    return f"{divergence:.3g}", f"{collapsed:.2g} of {num_components}"


def _charts(result: FinetuneResult) -> Iterator[tuple[str, str, Lines]]:
    """Title, caption and curves of each; those of components only if there is a mixture."""
    per_step = result.settings.batch_size * result.settings.block_length / 1e6
    seconds, nats = result.step_seconds, Axis(label="held-out nats per token")

    def lines(x: Callable[[str, int], float], x_label: str, y: Value, y_axis: Axis) -> Lines:
        return Lines(series=tuple(_series(result, x, y)), x=Axis(label=x_label), y=y_axis)

    chart = lines(lambda _, step: step * per_step, "million tokens", _nats, nats)
    yield "Equal tokens", "Held-out loss of the averaged weights, mean over seeds.", chart
    chart = lines(lambda name, step: step * (seconds[name] or 0.0) / 60, "minutes", _nats, nats)
    yield "Equal time", "The same against minutes of training, evaluations left out.", chart
    axis = Axis(label="nats", is_log=True, floor=1e-6)
    chart = lines(lambda _, step: step, "steps", _divergence, axis)
    if chart.series:
        yield "Do components differ?", "Jensen-Shannon divergence of two components.", chart
        chart = lines(lambda _, step: step, "steps", _collapsed, Axis(label="components"))
        yield "Collapsed components", "That predict as another does.", chart


def _series(result: FinetuneResult, x: Callable[[str, int], float], y: Value) -> Iterator[Series]:
    """One line per variant: means over the seeds, at steps that all of them have."""
    for variant, style in zip(result.settings.variants, STYLES, strict=False):
        curves = [
            {point.step: value for point in model.points if (value := y(point)) is not None}
            for model in of_variant(result.variants, variant)
        ]
        if steps := sorted(set.intersection(*map(set, curves))):
            yield Series(
                label=_name(variant),
                x=[x(variant, step) for step in steps],
                y=[fmean(curve[step] for curve in curves) for step in steps],
                style=style,
                marker_spacing=0.1,
            )


def _nats(point: Point) -> float:
    return point.valid_nats


def _divergence(point: Point) -> float | None:
    return None if point.components is None else point.components.divergence


def _collapsed(point: Point) -> float | None:
    return None if point.components is None else float(point.components.num_collapsed)
