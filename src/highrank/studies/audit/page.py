"""The page of `highrank audit`: page.html.j2 has the prose, this file the tables and charts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from highrank.analysis.components import ComponentReport
from highrank.report.figure import (
    Bars,
    Lines,
    describe,
    draw,
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
from highrank.studies.audit.charts import (
    difference_chart,
    growth_chart,
    residual_chart,
    spectra_chart,
    use_chart,
)
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
