"""The page of `highrank audit`: page.html.j2 has the prose, this file the tables and figures."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from highrank.analysis.components import ComponentReport
from highrank.report.figure import Bars, Lines, describe, draw, save_png, to_svg
from highrank.report.formats import (
    duration,
    environment_text,
    legible,
    legible_context,
    nats,
    power,
)
from highrank.report.page import Column, render
from highrank.studies.audit import charts
from highrank.studies.audit.answer import (
    EFFECTIVE,
    FREE,
    LIMITED,
    SETTLED,
    by_verdict,
    joint_answer,
    question,
)
from highrank.studies.audit.measure import AuditResult, ModelAudit, UnargmaxableToken
from highrank.studies.audit.model import Source
from highrank.studies.audit.table import (
    comparison,
    count,
    glossary,
    legible_name,
    millions,
    mixture_verdict,
    rows_of,
    short_names,
    unargmaxable_verdict,
)

# Unargmaxable tokens with a row of their own; the others follow as a list.
MOST_ROWS = 50
# The ε of `EFFECTIVE`.
EPSILON = 1e-3
# Tokens and contexts that are shown of each component.
NUM_PREFERRED, NUM_CONTEXTS = 8, 2

# What the macros `table` and `figure` show; the template adds title and caption.
Block = dict[str, Any]

FACTS: dict[str, Callable[[ModelAudit], str]] = {
    "Model": lambda m: legible_name(m.name),
    "Source": lambda m: "Hugging Face" if m.source is Source.HUGGING_FACE else "run",
    "Architecture": lambda m: m.architecture,
    "Parameters": lambda m: millions(m.num_parameters),
    "Output embedding": lambda m: _embedding(m),
    "Text": lambda m: legible_name(m.text.name),
    "SHA-256 of the text": lambda m: m.text.sha256[:12],
    "Tokens of the text": lambda m: count(m.text.num_tokens),
    "Contexts, T": lambda m: count(m.text.num_contexts),
    "Nats per token": lambda m: f"{m.text.nats:.4f}",
    "Matrix": lambda m: f"{count(m.rank.num_contexts)} × {count(m.rank.num_tokens)}",
    "Method": lambda m: f"{m.rank.method}: {m.rank.method_reason}",
    "Ceiling": lambda m: f"{count(m.rank.ceiling)}, by {m.rank.ceiling_reason}",
    "Bound": lambda m: (
        f"{'none' if m.rank.bound is None else count(m.rank.bound)}: {m.rank.bound_reason}"
    ),
    "Largest σ": lambda m: f"{m.rank.largest:.4g}",
    "Noise floor": lambda m: f"{m.rank.noise_floor:.1e}",
    "Time": lambda m: duration(m.elapsed),
}


def audit_page(result: AuditResult, command: str = "") -> str:
    """The findings about one model, or several side by side, as HTML.

    Args:
        command: what was typed, for those who want to repeat it.
    """
    names, models = short_names(result.models), result.models
    pairs = list(zip(names, models, strict=True))
    title = f"{len(names)} output layers" if len(names) > 1 else f"The output layer of {names[0]}"
    spectra, shown = charts.spectra(names, models), [r for r in rows_of(models) if not r.is_brief]
    return render(
        "studies/audit/page.html.j2",
        title=title,
        answer=joint_answer(names, [model.answer for model in models]),
        question=question(len(names)),
        verdicts=by_verdict(names, [model.answer for model in models]),
        footer=f"highrank {result.environment.highrank} · {result.environment.date} UTC · "
        f"{duration(result.elapsed)}",
        result=result,
        command=command,
        environment=environment_text(result.environment),
        glossary=glossary(models).items(),
        comparison=comparison(names, models),
        models=[_model(name, model) for name, model in pairs],
        key_table=_side_by_side(names, ((_upper(r.label), *map(r.cell, models)) for r in shown)),
        spectra=_figure(spectra, charts.draw_spectra(spectra, models)),
        residuals=_figure(charts.residuals(names, models)),
        growth=_figure(charts.growth(names, models, "numerical_rank_float32")),
        effective_growth=_figure(charts.growth(names, models, EFFECTIVE)),
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
    chart = charts.spectra(short_names(result.models), result.models)
    figure = charts.draw_spectra(chart, result.models, size=(8, 4.5), margin=0.1)
    save_png(figure, path, dpi=150)


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
    names = [name for name, _ in decided]
    return _side_by_side(names, ((label, *cells) for label, cells in rows.items()), "Tokens")


def _unargmaxable(token: UnargmaxableToken, source: str) -> tuple[str, ...]:
    if not token.between:
        between, proof = "–", "forbidden"
    else:
        between = " · ".join(legible(other, source) for other in token.between)
        proof = "exact" if token.is_exact else f"lead ≤ {power(token.lead)}"
    return legible(token.token, source), count(token.index), between, proof


def _mixture(mixture: ComponentReport, source: str) -> Block:
    components = list(enumerate(mixture.components, 1))
    use, differences = charts.use(mixture), charts.differences(mixture)
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
        "use": _figure(use, charts.draw_components(use, 1 / len(components))),
        "differences": _figure(differences, charts.draw_components(differences, math.log(2))),
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


def _figure(chart: Lines | Bars | None, figure: Any = None) -> Block | None:
    """A chart as `draw` draws it, or as it is drawn already; None if there is none."""
    if chart is None:
        return None
    return {"svg": to_svg(figure or draw(chart)), "description": describe(chart)}


def _embedding(model: ModelAudit) -> str:
    head = model.head
    parts = [head.dtype, "tied" if head.is_tied else "not tied"]
    parts.append("with bias" if head.has_bias else "no bias")
    if head.scale != 1:
        parts.append(f"logits × {head.scale:g}")
    if head.softcap is not None:
        parts.append(f"soft-capped at {head.softcap:g}")
    return ", ".join(parts)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
