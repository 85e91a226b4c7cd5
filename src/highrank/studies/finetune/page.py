"""The terminal table and the page of a finetuning."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table as RichTable

from highrank.analysis.components import COLLAPSED, MixtureState
from highrank.analysis.contrasts import Verdict
from highrank.integrations.huggingface.recipe import BASELINE, CONTROL, HEAD_RATE
from highrank.report.figure import Axis, Lines, Series, describe, draw, series_style, to_svg
from highrank.report.formats import (
    duration,
    environment_text,
    listed,
    make_table,
    narrow,
    with_error,
)
from highrank.report.page import Column, Figure, Table, render
from highrank.report.token_axis import against_tokens
from highrank.studies.finetune.measure import Finding, FinetuneResult, Mean, select_variant
from highrank.studies.finetune.settings import Settings
from highrank.studies.finetune.training import Point, TrainedVariant

CAPTION = (
    "Nats per held-out token (valid split, averaged weights), mean ± standard error over seeds; "
    "below softmax: of the same seed, + is better. JS divergence: Jensen-Shannon, mean of two "
    "components, nats; collapsed: components that predict as another does; both at the end."
)
NEXT_STEP = (
    "Give it more steps (--steps, --budget) or a higher --head-lr: as long as the divergence "
    "grows, the components are on their way."
)
CAPTIONS = {
    "Equal tokens": "Held-out loss of the averaged weights, mean over seeds; shaded: all seeds.",
    "Equal time": "The same against minutes of training, evaluations left out.",
    "Do components differ?": "Jensen-Shannon divergence of two components. Below the dashed line "
    "they count as one.",
    "Collapsed components": "That predict as another does.",
}


def finetune_table(result: FinetuneResult) -> RichTable:
    """One column per variant."""
    names = map(_name, result.settings.variants)
    caption = f"{CAPTION} {_where(result)}"
    table = make_table(("",), names, title=answer(result), caption=caption)
    for title, *cells in _rows(result):
        table.add_row(title, *narrow(cells))
    return table


def finetune_page(result: FinetuneResult, command: str) -> str:
    """The page as HTML."""
    names = map(_name, result.settings.variants)
    columns = (Column("", is_number=False), *map(Column, names))
    return render(
        "studies/finetune/page.html.j2",
        title="A mixture for a pretrained model",
        verdict=verdict(result),
        answer=answer(result),
        footer=environment_text(result.environment),
        result=result,
        command=command,
        head_rate=HEAD_RATE,
        heads=_heads(result.settings),
        where=_where(result),
        table=Table(columns=columns, rows=tuple(_rows(result)), caption=CAPTION),
        figures=list(_figures(result)),
    )


def answer(result: FinetuneResult) -> str:
    """Whether the best mixture is better than the best control, and what to change if not."""
    found = {"tokens": result.equal_tokens.finding, "time": result.equal_time.finding}
    parts = [f"At equal {name} {_sentence(one)}." for name, one in found.items()]
    best = found["tokens"]
    if best.variant != CONTROL and _has_collapsed(result, best.variant):
        parts.append(f"Its components have collapsed: it predicts as one softmax does. {NEXT_STEP}")
    elif best.gain.value > 0 and CONTROL not in result.settings.starts:
        parts.append(
            f"--starts {' '.join(result.settings.starts)} linear shows how much of it the added "
            "weights win without a mixture."
        )
    return " ".join(parts)


def verdict(result: FinetuneResult) -> str:
    """The finding at equal tokens, or that equal time does not confirm it, in twelve words."""
    found = result.equal_tokens.finding
    name, control = _name(found.variant), _named_control(found.control)
    if found.variant != CONTROL and _has_collapsed(result, found.variant):
        return f"The components of {name} have collapsed."
    if found.contrast is None:
        return f"One seed decides nothing: {name} against {control}."
    if found.contrast.verdict is Verdict.NO_DIFFERENCE:
        return f"No difference is seen between {name} and {control}."
    at_time = result.equal_time.finding.contrast
    if found.contrast.verdict is Verdict.BETTER and not (
        at_time is not None and at_time.verdict is Verdict.BETTER
    ):
        return f"{name} is better than {control} per token, not per second."
    return f"{name} is {found.contrast.verdict} than {control} at equal tokens."


def _has_collapsed(result: FinetuneResult, variant: str) -> bool:
    """Whether the components of all seeds have collapsed."""
    ends = [model.points[-1].components for model in select_variant(result.variants, variant)]
    return all(end is not None and end.state is MixtureState.COLLAPSED for end in ends)


def _sentence(found: Finding) -> str:
    """How a variant compares with a control."""
    gain, contrast = found.gain, found.contrast
    side = "below" if gain.value >= 0 else "above"
    name, control = _name(found.variant), _named_control(found.control)
    amount = f"{abs(gain.value):.4f} nats per token {side}"
    if contrast is None:
        return f"{name} is {amount} {control}, with one seed"
    finding = f"{name} is {contrast.verdict} than {control}"
    if contrast.verdict is Verdict.NO_DIFFERENCE:
        finding = f"no difference is seen between {name} and {control}"
    interval = f"{contrast.low:+.4f} to {contrast.high:+.4f}".replace("-", "−")
    return f"{finding}: {amount} it (95 % interval {interval})"


def _named_control(variant: str) -> str:
    return "the linear control" if variant == CONTROL else "the softmax"


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


def _heads(settings: Settings) -> str:
    """What the output layer is replaced by."""
    heads = []
    if settings.mixtures:
        starts = listed(settings.mixtures)
        heads.append(f"a mixture of {settings.num_components} softmaxes (start: {starts})")
    if CONTROL in settings.starts:
        heads.append(
            "as a control, by one softmax over a linear map of the hidden state, which has added "
            "weights but no components"
        )
    return " and, ".join(heads)


def _rows(result: FinetuneResult) -> list[tuple[str, ...]]:
    """Each with its title first."""
    titles = ["parameters", "ms per step", "nats, equal tokens", "– below softmax"]
    titles += ["nats, equal time", "– below softmax", "JS divergence", "collapsed"]
    columns = []
    for by_tokens, by_time in zip(result.equal_tokens.rows, result.equal_time.rows, strict=True):
        models = select_variant(result.variants, by_tokens.variant)
        each = result.step_seconds[by_tokens.variant]
        columns.append(
            (
                f"{models[0].num_parameters:,}",
                "–" if each is None else f"{1e3 * each:,.0f}",
                _nats(by_tokens.nats),
                _signed(by_tokens.gain),
                _nats(by_time.nats),
                _signed(by_time.gain),
                *_components(models, result.settings.num_components),
            )
        )
    return list(zip(titles, *columns, strict=True))


def _signed(gain: Mean | None) -> str:
    if gain is None:
        return "–"
    sign = "−" if gain.value < 0 else "+"
    return sign + _nats(Mean(value=abs(gain.value), error=gain.error))


def _nats(mean: Mean) -> str:
    """With its error; four decimals where there is none."""
    return with_error(mean.value, mean.error) if mean.error else f"{mean.value:.4f}"


def _components(models: Sequence[TrainedVariant], num_components: int) -> tuple[str, str]:
    found = [model.points[-1].components for model in models]
    last = [components for components in found if components is not None]
    if not last:
        return "–", "–"
    collapsed = fmean(components.num_collapsed for components in last)
    divergence = fmean(components.divergence for components in last)
    return f"{divergence:.3g}", f"{collapsed:.2g} of {num_components}"


def _figures(result: FinetuneResult) -> Iterator[Figure]:
    """Curves of the loss, and of components if there is a mixture."""
    names, settings = result.settings.variants, result.settings
    tokens = dict.fromkeys(names, float(settings.batch_size * settings.block_length))
    minutes = {name: (each or 0.0) / 60 for name, each in result.step_seconds.items()}
    steps = dict.fromkeys(names, 1)
    nats = Axis(label="held-out nats per token")
    divergence = Axis(label="nats", is_log=True, floor=1e-9)
    K = settings.num_components
    components = Axis(label="components", ticks=tuple(range(0, K + 1, -(-K // 5))))
    for title, field, y, unit, of_step in (
        ("Equal tokens", "valid_nats", nats, "tokens", tokens),
        ("Equal time", "valid_nats", nats, "minutes", minutes),
        ("Do components differ?", "divergence", divergence, "steps", steps),
        ("Collapsed components", "num_collapsed", components, "steps", steps),
    ):
        if series := tuple(_series(result, field, of_step)):
            levels = (COLLAPSED,) if field == "divergence" else ()
            chart = Lines(series=series, x=Axis(label=unit), y=y, levels=levels)
            if unit == "tokens":
                chart = against_tokens(series, y)
            svg, text = to_svg(draw(chart)), describe(chart)
            yield Figure(svg=svg, description=text, title=title, caption=CAPTIONS[title])


def _series(result: FinetuneResult, field: str, of_step: Mapping[str, float]) -> Iterator[Series]:
    """One line per variant: means and range of the seeds, at steps that all of them have.

    Args:
        field: of a point or of its components.
        of_step: tokens or time of a step, by variant.
    """
    for place, variant in enumerate(result.settings.variants):
        curves = [
            {point.step: values[field] for point in one.points if field in (values := _all(point))}
            for one in select_variant(result.variants, variant)
        ]
        if steps := sorted(set.intersection(*map(set, curves))):
            seeds = [[float(curve[step]) for curve in curves] for step in steps]
            yield Series(
                label=_name(variant),
                x=[step * of_step[variant] for step in steps],
                y=[fmean(some) for some in seeds],
                style=series_style(place),
                marker_spacing=0.1,
                band=[(min(some), max(some)) for some in seeds] if len(curves) > 1 else (),
            )


def _all(point: Point) -> dict[str, Any]:
    """The fields of a point and of its components."""
    return vars(point) | ({} if point.components is None else vars(point.components))
