"""The terminal table and the page of a training on pairs."""

from collections.abc import Iterator
from statistics import fmean

from rich.table import Table as RichTable

from highrank.analysis.contrasts import Contrast, Verdict
from highrank.integrations.huggingface.recipe import CONTROL
from highrank.report.figure import Axis, Lines, Series, describe, draw, series_style, to_svg
from highrank.report.formats import duration, environment_text, make_table, narrow
from highrank.report.page import Column, Figure, Table, render
from highrank.report.token_axis import against_tokens
from highrank.studies.pairs.measure import Comparison, PairsResult, Row, select
from highrank.studies.pairs.scoring import MEASURES, Measure, beams_of, measures_of
from highrank.studies.pairs.settings import Variant

TITLES = {
    "softmax": "Softmax",
    "linear": "Softmax, linear",
    "mos": "MoS",
    "moc": "MoC",
    "adaptive-softmax": "Adaptive softmax",
    "adaptive-mos": "Adaptive MoS",
    "low-rank-mos": "Low-rank MoS",
}
# The measure that the answer is about.
LEADING = {"translation": "bleu_lower", "summary": "bleu_lower", "dialogue": "perplexity"}
CAPTION = "Test pairs, averaged weights, mean over seeds."
OF_SEVERAL = (
    "Better and worse: against the softmax of the same seed, t test, p ≤ 0.05, corrected for the "
    "number of heads; one seed decides nothing."
)


def title_of(name: str) -> str:
    """The head's name in tables, with its number of components."""
    kind, num_components = Variant.parse(name)
    title = TITLES.get(kind, kind)
    return title if num_components == 1 else f"{title}, K={num_components}"


def pairs_table(result: PairsResult) -> RichTable:
    """One column per variant."""
    caption = " ".join((_caption(result), *_facts(result)))
    names = map(title_of, result.settings.heads)
    table = make_table(("",), names, title=answer(result), caption=caption)
    for title, *cells in _rows(result):
        table.add_row(title, *narrow(cells))
    return table


def pairs_page(result: PairsResult, command: str) -> str:
    """The page as HTML."""
    columns = (Column("", is_number=False), *map(Column, map(title_of, result.settings.heads)))
    rows = tuple((title, *narrow(cells)) for title, *cells in _rows(result))
    last = [select(result.models, name)[0].scores[-1] for name in result.settings.heads]
    samples = tuple(
        (of[0].source, of[0].reference, *(one.hypothesis for one in of))
        for of in zip(*(scores.samples for scores in last), strict=True)
    )
    headings = ("Source", "Reference", *map(title_of, result.settings.heads))
    return render(
        "studies/pairs/page.html.j2",
        title=f"Heads of an encoder–decoder: {result.settings.task}",
        verdict=verdict(result),
        answer=answer(result),
        footer=environment_text(result.environment),
        result=result,
        command=command,
        facts=_facts(result),
        beams=beams_of(result.settings),
        table=Table(columns=columns, rows=rows, caption=_caption(result)),
        samples=Table(
            columns=tuple(Column(title, is_number=False) for title in headings),
            rows=samples,
            caption="The first test pairs, as each model of seed 0 writes them at its end.",
        ),
        figures=list(_figures(result)),
    )


def answer(result: PairsResult) -> str:
    """How the best head does against the softmax, at equal tokens and at equal time."""
    measure = _leading(result)
    if len(result.settings.heads) == 1:
        cell = result.equal_time.rows[0].cells[measure.key]
        number = _number(cell.mean, measure)
        return f"One softmax has {number} {measure.label}, on the test pairs."
    parts = []
    for name, comparison in (("tokens", result.equal_tokens), ("time", result.equal_time)):
        parts.append(f"At equal {name} {_sentence(comparison, measure)}.")
    return " ".join(parts)


def verdict(result: PairsResult) -> str:
    """The finding at equal time in at most twelve words."""
    measure = _leading(result)
    if len(result.settings.heads) == 1:
        cell = result.equal_time.rows[0].cells[measure.key]
        return f"One softmax: {_number(cell.mean, measure)} {measure.label}."
    best = _best(result.equal_time, measure)
    contrast, name = best.cells[measure.key].contrast, measure.label.split()[0].strip(",")
    if contrast is None:
        return "One seed decides nothing."
    if contrast.verdict is Verdict.NO_DIFFERENCE:
        return f"No difference in {name} is seen: {title_of(best.variant)} and the softmax."
    return f"{title_of(best.variant)} has {contrast.verdict} {name} than the softmax at equal time."


def _leading(result: PairsResult) -> Measure:
    task = result.settings.task
    return next(one for one in MEASURES[task] if one.key == LEADING[task])


def _best(comparison: Comparison, measure: Measure) -> Row:
    """The best row but that of the softmax."""
    sign = 1 if measure.is_loss else -1
    return min(comparison.rows[1:], key=lambda row: sign * row.cells[measure.key].mean)


def _sentence(comparison: Comparison, measure: Measure) -> str:
    best, base = _best(comparison, measure), comparison.rows[0]
    cell, of_base = best.cells[measure.key], base.cells[measure.key]
    name = title_of(best.variant) + (" (a control)" if best.variant == CONTROL else "")
    if len(comparison.rows) > 2:
        name += ", the best of the others,"
    text = (
        f"{name} has {_number(cell.mean, measure)} {measure.label}, the "
        f"softmax {_number(of_base.mean, measure)}"
    )
    if cell.contrast is None:
        return f"{text}, with one seed"
    return f"{text}: {_verdict(cell.contrast)} (95 % interval {_interval(cell.contrast, measure)})"


def _verdict(contrast: Contrast) -> str:
    return str(contrast.verdict)


def _interval(contrast: Contrast, measure: Measure) -> str:
    """The ends of the difference, in the measure's own direction."""
    ends = (contrast.low, contrast.high)
    low, high = ends if measure.is_loss else (-ends[1], -ends[0])
    return f"{low:+.{measure.digits}f} to {high:+.{measure.digits}f}".replace("-", "−")


def _number(value: float, measure: Measure) -> str:
    return f"{value:,.{measure.digits}f}"


def _caption(result: PairsResult) -> str:
    return CAPTION if len(result.settings.heads) == 1 else f"{CAPTION} {OF_SEVERAL}"


def _rows(result: PairsResult) -> list[tuple[str, ...]]:
    """Each with its title first."""
    heads, models = result.settings.heads, result.models
    of_each = [select(models, name)[0] for name in heads]
    found = [
        ("parameters", *(f"{one.num_parameters:,}" for one in of_each)),
        ("ms per step", *(f"{1e3 * result.step_seconds[name]:,.0f}" for name in heads)),
    ]
    comparisons = [("equal tokens", result.equal_tokens), ("equal time", result.equal_time)]
    for title, comparison in comparisons if len(heads) > 1 else [("all", result.equal_time)]:
        steps = (f"{row.step:,}" for row in comparison.rows)
        found.append((f"steps, {title}", *steps))
        for measure in measures_of(result.settings.task, comparison.rows[0].cells):
            cells = (_cell(row, measure) for row in comparison.rows)
            found.append((f"– {measure.label}", *cells))
    return found


def _cell(row: Row, measure: Measure) -> str:
    cell = row.cells[measure.key]
    text = _number(cell.mean, measure)
    if len(cell.values) > 1:
        half = (max(cell.values) - min(cell.values)) / 2
        text += f" ± {_number(half, measure)}"
    if cell.contrast is not None and cell.contrast.verdict is not Verdict.NO_DIFFERENCE:
        text += f", {cell.contrast.verdict}"
    return text


def _facts(result: PairsResult) -> list[str]:
    """Sentences about the pairs and the two marks."""
    facts, heads = result.corpus, result.settings.heads
    seen, number = facts.num_seen["test"], facts.num_pairs["test"]
    total = number + (seen if facts.is_cleaned else 0)
    part = f"{seen:,} of {total:,} test pairs ({seen / total:.1%}) stand in train"
    kept = "they were left out" if facts.is_cleaned else "unseen pairs are those without them"
    found = [f"{part}: {kept}." if seen else f"None of the {number:,} test pairs stands in train."]
    tokens, seconds = result.equal_tokens.at, result.equal_time.at
    if len(heads) == 1:
        found.append(f"After {tokens:,.0f} target tokens and {duration(seconds)} of training.")
    else:
        found.append(
            f"Equal tokens: after {tokens:,.0f} target tokens; equal time: after "
            f"{duration(seconds)}, as steps × the time of a step."
        )
    if result.settings.seeds > 1:
        found.append("±: half the range of the seeds.")
    last = select(result.models, heads[0])[0].scores[-1]
    found.append(f"Each search of the test pairs took about {duration(last.seconds)}.")
    if cut := facts.num_cut["test"]:
        found.append(f"{cut:,} test pairs are cut: they have more tokens than the model reads.")
    found += [f"{name}: {note}." for name, note in last.notes.items()]
    return found


def _figures(result: PairsResult) -> Iterator[Figure]:
    """Losses on the valid pairs, by tokens and by time."""
    captions = {
        "Equal tokens": "Loss on the valid pairs, averaged weights, mean over seeds; shaded: all.",
        "Equal time": "The same against minutes of training, as steps × the time of a step.",
    }
    nats = Axis(label="valid nats per token")
    by_time = Lines(series=tuple(_series(result, by_time=True)), x=Axis(label="minutes"), y=nats)
    by_tokens = against_tokens(tuple(_series(result, by_time=False)), nats, what="target tokens")
    for title, chart in (("Equal tokens", by_tokens), ("Equal time", by_time)):
        yield Figure(
            svg=to_svg(draw(chart)),
            description=describe(chart),
            title=title,
            caption=captions[title],
        )


def _series(result: PairsResult, *, by_time: bool) -> Iterator[Series]:
    """One line per variant, from the first evaluation after the start on."""
    for place, name in enumerate(result.settings.heads):
        models = select(result.models, name)
        points = list(zip(*(one.points for one in models), strict=True))[1:]
        of_step = result.step_seconds[name] / 60
        xs = (
            [of[0].step * of_step for of in points]
            if by_time
            else [of[0].num_targets for of in points]
        )
        losses = [[one.valid_nats for one in of] for of in points]
        yield Series(
            label=title_of(name),
            x=xs,
            y=[fmean(some) for some in losses],
            style=series_style(place),
            marker_spacing=0.1,
            band=[(min(some), max(some)) for some in losses] if len(models) > 1 else (),
        )
