"""The page of `highrank audit`: page.html.j2 has the prose, this file the tables and charts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from highrank.analysis.components import ComponentReport
from highrank.analysis.rank import press_threshold
from highrank.report.figure import (
    DASHED,
    TRUTH,
    Axis,
    Bars,
    Lines,
    Mark,
    Series,
    Style,
    describe,
    draw,
    line_style,
    save_png,
    to_svg,
)
from highrank.report.formats import (
    count,
    duration,
    environment_text,
    legible,
    legible_context,
    nats,
    power,
)
from highrank.report.page import Column, render
from highrank.studies.audit.answer import EFFECTIVE, FREE, LIMITED, SETTLED, joint_headline
from highrank.studies.audit.measure import AuditResult, ModelAudit
from highrank.studies.audit.table import (
    FACTS,
    comparison,
    four_numbers,
    glossary,
    mixture_verdict,
    rows_of,
    short_names,
    unargmaxable_verdict,
    undertrained_verdict,
)
from highrank.studies.audit.tokens import UnargmaxableToken

# Unargmaxable tokens with a row of their own; the others follow as a list.
MOST_ROWS = 50
# The ε of `EFFECTIVE`.
EPSILON = 1e-3
# Tokens and contexts that are shown of each component.
NUM_PREFERRED, NUM_CONTEXTS = 8, 2

FLOAT32_EPS = 2.0**-23
# Points of a curve: more cannot be seen.
MAX_POINTS = 300
LOWEST = 1e-9
STYLES = (
    line_style("series-1", marker="o", linewidth=3.2, markersize=8.0),
    line_style("series-3", marker="D"),
    line_style("series-2", marker="s", linewidth=1.6, linestyle=DASHED),
    line_style("series-4", marker="^"),
    line_style("series-5", marker="v", linestyle=DASHED),
    line_style("series-6", marker="X", linewidth=1.6),
)
# Between markers, which tell the curves of several models apart.
MARKER_SPACING = 0.25

# What the macros `table` and `figure` show; the template adds title and caption.
Block = dict[str, Any]


def audit_page(result: AuditResult, command: str = "") -> str:
    """The findings about one model, or several side by side, as HTML.

    Args:
        command: what was typed, for those who want to repeat it.
    """
    names, models = short_names(result.models), result.models
    pairs = list(zip(names, models, strict=True))
    which = names[0] if len(names) == 1 else f"these {len(names)} models"
    answers = [model.answer for model in models]
    shown = [row for row in rows_of(models) if not row.is_brief]
    return render(
        "studies/audit/page.html.j2",
        title=f"Does one softmax limit {which}?",
        verdict=joint_headline(names, answers),
        answer=answers[0].reason if len(answers) == 1 else comparison(names, models),
        footer=f"highrank {result.environment.highrank} · {result.environment.date} UTC · "
        f"{duration(result.elapsed)}",
        result=result,
        command=command,
        environment=environment_text(result.environment),
        glossary=glossary(models).items(),
        models=[_model(name, model) for name, model in pairs],
        key_table=_side_by_side(names, ((_upper(r.label), *map(r.cell, models)) for r in shown)),
        four_table=_side_by_side(names, four_numbers(models)),
        spectra=_figure(spectra_chart(names, models)),
        residuals=_figure(residual_chart(names, models)),
        growth=_figure(growth_chart(names, models, "numerical_rank_float32")),
        effective_growth=_figure(growth_chart(names, models, EFFECTIVE)),
        fit_rule={"limited": f"{LIMITED:.1%}", "free": f"{FREE:.1%}", "settled": f"{SETTLED:.0%}"},
        epsilon=(power(EPSILON), f"{EPSILON:.1%}"),
        argmaxable_table=_argmaxable([(n, m) for n, m in pairs if m.unargmaxable is not None]),
        facts_table=_table(
            ("", *names), ((label, *map(fact, models)) for label, fact in FACTS.items())
        ),
        count=count,
    )


def audit_picture(result: AuditResult, path: Path) -> None:
    """Write the spectra as a PNG, 1200 pixels wide."""
    chart = spectra_chart(short_names(result.models), result.models)
    save_png(draw(chart, size=(8, 4.5), margin=0.1), path, dpi=150)


def _model(name: str, model: ModelAudit) -> Block:
    """The part of the page on one model."""
    tokens = () if model.unargmaxable is None else model.unargmaxable.unargmaxable
    rows = (_unargmaxable(token, model.source) for token in tokens[:MOST_ROWS])
    return {
        "name": name,
        "answer": model.answer.sentence,
        "unargmaxable_verdict": unargmaxable_verdict(model),
        "rank": model.rank,
        "head": model.head,
        "unargmaxable": model.unargmaxable,
        "note": _upper(model.unargmaxable_note),
        "tokens_table": _table(("Token", "Index", "Between", "Proof"), rows, numbers=(1,)),
        "more_tokens": [legible(token.token, model.source) for token in tokens[MOST_ROWS:]],
        "undertrained_verdict": undertrained_verdict(model),
        "undertrained_table": _undertrained(model),
        "mixture": None if model.mixture is None else _mixture(model.mixture, model.source),
    }


def _argmaxable(decided: Sequence[tuple[str, ModelAudit]]) -> Block:
    facts = [model.unargmaxable for _, model in decided if model.unargmaxable is not None]
    rows = {
        "argmaxable": [count(f.num_argmaxable) for f in facts],
        "– tied with another token": [count(f.num_tied) for f in facts],
        "unargmaxable, proved": [count(f.num_unargmaxable) for f in facts],
        "too close to call": [count(f.num_undecided) for f in facts],
        "left for lack of time": [count(f.num_untried) for f in facts],
        "time": [duration(f.elapsed) for f in facts],
    }
    return _side_by_side(
        dict(decided), ((label, *cells) for label, cells in rows.items()), "Tokens"
    )


def _unargmaxable(token: UnargmaxableToken, source: str) -> tuple[str, ...]:
    if not token.between:
        between, proof = "–", "forbidden"
    else:
        between = " · ".join(legible(other, source) for other in token.between)
        proof = "exact" if token.is_exact else f"lead ≤ {power(token.lead)}"
    return legible(token.token, source), count(token.index), between, proof


def _undertrained(model: ModelAudit) -> Block | None:
    if (facts := model.undertrained) is None:
        return None
    rows = (
        (legible(t.token, model.source), count(t.index), f"{t.score:.3f}", count(t.num_seen))
        for t in facts.undertrained[:MOST_ROWS]
    )
    return _side_by_side(("Index", _upper(facts.measure), "Seen"), rows, "Token")


def _mixture(mixture: ComponentReport, source: str) -> Block:
    components = list(enumerate(mixture.components, 1))
    contexts = [
        (str(k), legible_context(at.text), legible(at.next_token, source), f"{at.weight:.2f}")
        for k, component in components
        for at in component.top_contexts[:NUM_CONTEXTS]
    ]
    return {
        "verdict": mixture_verdict(mixture),
        "weight_entropy": f"{mixture.weight_entropy:.3f}",
        "use_entropy": f"{mixture.use_entropy:.3f}",
        "most_entropy": f"{math.log(len(components)):.3f}",
        "use": _figure(use_chart(mixture)),
        "differences": _figure(difference_chart(mixture)),
        "components": _components(mixture),
        "preferred": _preferred(mixture, source),
        "pairs": _pairs(mixture),
        "contexts": _table(("k", "Context", "Next token", "Weight"), contexts, numbers=(3,)),
    }


def _components(mixture: ComponentReport) -> Block:
    rows = []
    for k, component in enumerate(mixture.components):
        others = [(value, j + 1) for j, value in enumerate(mixture.pair_divergence[k]) if j != k]
        value, nearest = min(others)
        name = f"{k + 1}, dead" if component.is_dead else f"{k + 1}"
        numbers = f"{component.mean_weight:.3f}", f"{component.largest_fraction:.1%}"
        rows.append((name, *numbers, f"{nearest} ({nats(value)})"))
    return _side_by_side(("Weight", "Largest in", "Nearest"), rows, "k")


def _preferred(mixture: ComponentReport, source: str) -> Block:
    rows = []
    for k, component in enumerate(mixture.components, 1):
        tokens = (
            f"{legible(token.token, source)}\u00a0{token.responsibility:.0%}"
            for token in component.preferred[:NUM_PREFERRED]
        )
        rows.append((str(k), " · ".join(tokens) or "–"))
    return _table(("k", "Tokens"), rows)


def _pairs(mixture: ComponentReport) -> Block:
    names, rows = [str(k) for k in range(1, len(mixture.components) + 1)], []
    for k, row in enumerate(mixture.pair_divergence):
        cells = [f"{value:.2f}" if value >= 0.005 else nats(value) for value in row]
        cells[k] = ""
        rows.append((names[k], *cells))
    return _side_by_side(names, rows)


def _side_by_side(names: Iterable[str], rows: Iterable[Sequence[str]], first: str = "") -> Block:
    """A table of numbers behind the first column."""
    titles = (first, *names)
    return _table(titles, rows, numbers=range(1, len(titles)))


def _table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> Block:
    columns = [Column(title, i in set(numbers)) for i, title in enumerate(titles)]
    return {"columns": columns, "rows": [tuple(row) for row in rows], "highlighted": ()}


def _figure(chart: Lines | Bars | None) -> Block | None:
    return None if chart is None else {"svg": to_svg(draw(chart)), "description": describe(chart)}


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def spectra_chart(names: Sequence[str], models: Sequence[ModelAudit]) -> Lines:
    """Singular values divided by the largest, with the bounds and float32's round-off."""
    labels = ("index, the largest first", "singular value ÷ the largest")
    bounds: dict[int, str] = {}
    for index, model in enumerate(models):
        if model.rank.bound is not None:
            bounds.setdefault(model.rank.bound, style_of(index)["color"])
    thresholds = {
        press_threshold(1.0, (m.rank.num_contexts, m.rank.num_tokens), FLOAT32_EPS) for m in models
    }
    return replace(
        _curves(names, models, relative_values, labels),
        marks=tuple(Mark(x, f"bound {x:,}", color) for x, color in sorted(bounds.items())),
        levels=tuple(sorted(thresholds)),
        level_label="round-off of float32",
    )


def residual_chart(names: Sequence[str], models: Sequence[ModelAudit]) -> Lines:
    """The fraction of the sum of squares that is left without the first k singular values."""
    labels = ("first k singular values", "fraction that is left")
    return _curves(names, models, residual_values, labels)


def growth_chart(names: Sequence[str], models: Sequence[ModelAudit], key: str) -> Lines | None:
    """A measure of rank against the number of contexts; None if it is unknown for all."""
    series = []
    for index, (name, model) in enumerate(zip(names, models, strict=True)):
        points = [(at.num_contexts, at.measures[key]) for at in model.rank.growth]
        points = [(size, rank) for size, rank in points if rank]
        if points:
            xs, ys = zip(*points, strict=True)
            series.append(Series(label=name, x=xs, y=ys, style=style_of(index)))
    if not series:
        return None
    ranks = [y for line in series for y in line.y]
    contexts = [x for line in series for x in line.x]
    ends = (min(contexts), min(max(contexts), max(ranks)))
    if ends[0] < ends[1]:
        series.insert(0, Series(label="one per context", x=ends, y=ends, style=TRUTH))
    # No rank lies between two numbers.
    whole = tuple(range(int(min(ranks)), int(max(ranks)) + 1))
    return Lines(
        series=tuple(series),
        x=Axis(label="contexts", is_log=True),
        y=Axis(label="rank", is_log=True, ticks=whole if 1 < len(whole) < 7 else None),
    )


def use_chart(mixture: ComponentReport) -> Bars:
    """How much each component is used; the level is that of components that are used alike."""
    components = mixture.components
    return _bars(
        {
            "mean weight": [component.mean_weight for component in components],
            "largest in so many contexts": [c.largest_fraction for c in components],
        },
        "fraction",
        1 / len(components),
    )


def difference_chart(mixture: ComponentReport) -> Bars:
    """How far each component is from the others: on average, and from the nearest.

    The level is that of components without a token in common.
    """
    others = [
        [value for j, value in enumerate(row) if j != k]
        for k, row in enumerate(mixture.pair_divergence)
    ]
    return _bars(
        {
            "mean over the others": [sum(row) / len(row) for row in others],
            "the nearest": [min(row) for row in others],
        },
        "divergence, nats",
        math.log(2),
    )


def _bars(values: dict[str, list[float]], label: str, level: float) -> Bars:
    styles = (line_style("series-3"), line_style("series-1", marker="o"))
    total = len(next(iter(values.values())))
    return Bars(
        categories=tuple(str(k) for k in range(1, total + 1)),
        series=tuple(
            Series(label=name, x=range(total), y=ys, style=style)
            for (name, ys), style in zip(values.items(), styles, strict=True)
        ),
        x=Axis(label="component"),
        y=Axis(label=label),
        level=level,
    )


def style_of(index: int) -> Style:
    """How the model of this index is drawn in every chart; beyond six, dashes change."""
    turn, place = divmod(index, len(STYLES))
    style = STYLES[place]
    other = {"linestyle": "-" if "linestyle" in style else DASHED} if turn % 2 else {}
    return style | other


def relative_values(model: ModelAudit) -> list[float]:
    """σ ÷ σ_max; zero for what is below the noise floor, and at the end if values are left out."""
    rank = model.rank
    values = [
        value / rank.largest if value > rank.noise_floor else 0.0 for value in rank.singular_values
    ]
    has_more = len(values) < min(rank.num_contexts, rank.num_tokens)
    return [*values, 0.0] if has_more else values


def residual_values(model: ModelAudit) -> list[float]:
    """Σ_{i>k} σ² ÷ Σ σ² for k = 1, 2, …; the last is 0."""
    squares = [value**2 for value in reversed(model.rank.singular_values)]
    tails = list(accumulate(squares))[::-1]
    return [*(tail / tails[0] for tail in tails[1:]), 0.0]


def _curves(
    names: Sequence[str],
    models: Sequence[ModelAudit],
    values_of: Callable[[ModelAudit], list[float]],
    labels: tuple[str, str],
) -> Lines:
    series = []
    for index, (name, model) in enumerate(zip(names, models, strict=True)):
        values = values_of(model)
        shown = thinned(len(values))
        series.append(
            Series(
                label=name,
                x=[k + 1 for k in shown],
                y=[values[k] for k in shown],
                style=style_of(index) | ({} if len(models) > 1 else {"marker": ""}),
                marker_spacing=MARKER_SPACING,
            )
        )
    return Lines(
        series=tuple(series),
        x=Axis(label=labels[0], is_log=True),
        y=Axis(label=labels[1], is_log=True, floor=LOWEST),
    )


def thinned(length: int) -> list[int]:
    """All indices, or some that are evenly spread on a log scale, the last two among them."""
    spread = {round(length ** (step / (MAX_POINTS - 1))) - 1 for step in range(MAX_POINTS)}
    return list(range(length)) if length <= MAX_POINTS else sorted(spread | {length - 2})
