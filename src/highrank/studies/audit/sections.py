"""The page's part on the components of a mixture: are they used, and do they differ?

The page's part on words that no hidden state makes the most likely.
"""

import math
from collections.abc import Sequence

from highrank.report.figure import to_svg
from highrank.report.formats import duration, legible, legible_context
from highrank.report.page import (
    Block,
    Code,
    Column,
    Figure,
    Grid,
    Paragraph,
    Section,
    Strong,
    Table,
)
from highrank.studies.audit import text as audit_text
from highrank.studies.audit.charts import draw_differences, draw_use
from highrank.studies.audit.result import MixtureFacts, ModelAudit, UnreachableWord
from highrank.studies.audit.table import count, power
from highrank.studies.audit.verdict import mixture_verdict

NUM_WORDS, NUM_TAKEOVERS = 8, 2


def mixture_section(names: Sequence[str], models: Sequence[ModelAudit]) -> Section:
    """Every model with components; one line for those without."""
    blocks: list[Block] = [Paragraph((audit_text.MIXTURE,))]
    for name, model in zip(names, models, strict=True):
        if model.mixture is None:
            note = "One softmax, no components: nothing to say here."
            blocks.append(Paragraph((Strong(f"{name}: "), note)))
        else:
            blocks += _health(name, model, model.mixture)
    return Section("The mixture", tuple(blocks))


def _health(name: str, model: ModelAudit, mixture: MixtureFacts) -> list[Block]:
    control = "" if model.head.kind != "moc" else " (Of a MoC: what each context would say alone.)"
    most = math.log(len(mixture.components))
    entropies = (
        f" Entropy of the weights: {mixture.weight_entropy:.3f} in a context, on average, and "
        f"{mixture.use_entropy:.3f} over all, of at most {most:.3f}."
    )
    text = Paragraph((Strong(f"{name}: "), mixture_verdict(mixture) + entropies + control))
    return [
        text,
        Grid((_use(name, mixture), _differences(name, mixture))),
        _components(name, mixture),
        _preferred(name, model, mixture),
        _pairs(name, mixture),
        *_takeovers(name, model, mixture),
    ]


def _use(name: str, mixture: MixtureFacts) -> Figure:
    numbers = ", ".join(
        f"{k}: {component.mean_weight:.3f}, largest in {component.largest_share:.1%}"
        for k, component in enumerate(mixture.components, 1)
    )
    return Figure(
        svg=to_svg(draw_use(mixture)),
        title=f"Use of the components of {name}",
        caption="Dashed: all used alike.",
        description=f"Mean weight of each component: {numbers}.",
    )


def _differences(name: str, mixture: MixtureFacts) -> Figure:
    return Figure(
        svg=to_svg(draw_differences(mixture)),
        title=f"How the components of {name} differ",
        caption=audit_text.DIFFERENCES_CAPTION,
        description="Divergence of each component from the others; the numbers are in the tables.",
    )


def _components(name: str, mixture: MixtureFacts) -> Table:
    rows = []
    for k, component in enumerate(mixture.components):
        nearest = _nearest(mixture, k)
        rows.append(
            (
                f"{k + 1}, dead" if component.is_dead else f"{k + 1}",
                f"{component.mean_weight:.3f}",
                f"{component.largest_share:.1%}",
                f"{nearest + 1} ({mixture.pair_divergence[k][nearest]:.3f})",
            )
        )
    return Table(
        title=f"Components of {name}",
        caption=audit_text.COMPONENTS_CAPTION,
        columns=(Column("k", False), *map(Column, ("Weight", "Largest in", "Nearest"))),
        rows=tuple(rows),
    )


def _preferred(name: str, model: ModelAudit, mixture: MixtureFacts) -> Table:
    rows = []
    for k, component in enumerate(mixture.components, 1):
        words = (
            f"{legible(word.word, model.source)}\u00a0{word.share:.0%}"
            for word in component.preferred[:NUM_WORDS]
        )
        rows.append((str(k), " · ".join(words) or "–"))
    return Table(
        title=f"What each component of {name} prefers to say",
        caption=audit_text.PREFERRED_CAPTION,
        columns=(Column("k", False), Column("Words", False)),
        rows=tuple(rows),
    )


def _nearest(mixture: MixtureFacts, k: int) -> int:
    row = mixture.pair_divergence[k]
    return min((j for j in range(len(row)) if j != k), key=row.__getitem__)


def _pairs(name: str, mixture: MixtureFacts) -> Table:
    total = len(mixture.components)
    return Table(
        title=f"Divergence between components of {name}",
        caption=audit_text.PAIRS_CAPTION,
        columns=(Column("", False), *(Column(str(k)) for k in range(1, total + 1))),
        rows=tuple(
            (str(k + 1), *("" if j == k else f"{value:.2f}" for j, value in enumerate(row)))
            for k, row in enumerate(mixture.pair_divergence)
        ),
    )


def _takeovers(name: str, model: ModelAudit, mixture: MixtureFacts) -> list[Table]:
    rows = tuple(
        (
            str(k),
            legible_context(takeover.text),
            legible(takeover.next_word, model.source),
            f"{takeover.weight:.2f}",
        )
        for k, component in enumerate(mixture.components, 1)
        for takeover in component.takeovers[:NUM_TAKEOVERS]
    )
    table = Table(
        title=f"Where a component of {name} takes over",
        caption=audit_text.TAKEOVERS_CAPTION,
        columns=(
            Column("k", False),
            Column("After", False),
            Column("Came", False),
            Column("Weight"),
        ),
        rows=rows,
    )
    return [table] if rows else []


# Words with a row of their own; the others follow as a list.
MOST_ROWS = 50


def reachability_section(names: Sequence[str], models: Sequence[ModelAudit]) -> Section:
    """Counts side by side, then each model's unreachable words."""
    blocks: list[Block] = [audit_text.REACHABILITY]
    decided = [(n, m) for n, m in zip(names, models, strict=True) if m.reachability is not None]
    if decided:
        blocks.append(_counts(decided))
    for name, model in zip(names, models, strict=True):
        blocks += _words(name, model)
    return Section("Unreachable words", tuple(blocks))


def _counts(decided: Sequence[tuple[str, ModelAudit]]) -> Table:
    facts = [model.reachability for _, model in decided if model.reachability is not None]
    rows = {
        "reachable": [count(f.num_reachable) for f in facts],
        "– tied with another word": [count(f.num_tied) for f in facts],
        "unreachable, proved": [count(f.num_unreachable) for f in facts],
        "too close to call": [count(f.num_undecided) for f in facts],
        "left for lack of time": [count(f.num_untried) for f in facts],
        "time": [duration(f.elapsed) for f in facts],
    }
    return Table(
        title="Words that some hidden state makes the most likely",
        caption="Tied: words with the same vector and bias always lead together.",
        columns=(Column("Words", False), *(Column(name) for name, _ in decided)),
        rows=tuple((label, *cells) for label, cells in rows.items()),
    )


def _words(name: str, model: ModelAudit) -> list[Block]:
    facts, opening = model.reachability, Strong(f"{name}: ")
    if facts is None:
        note = model.reachability_note
        return [Paragraph((opening, f"{note[:1].upper()}{note[1:]}."))]
    states = f"Hidden states that count: {facts.states}."
    if not facts.unreachable:
        return [Paragraph((opening, states, " No word is proved unreachable."))]
    first, others = facts.unreachable[:MOST_ROWS], facts.unreachable[MOST_ROWS:]
    table = Table(
        title=f"Unreachable words of {name}",
        caption=audit_text.UNREACHABLE_CAPTION,
        columns=(
            Column("Word", False),
            Column("Index"),
            Column("Between", False),
            Column("Proof", False),
        ),
        rows=tuple(_row(word, model.source) for word in first),
    )
    more: list[Block] = []
    if others:
        listed = (part for word in others for part in (Code(legible(word.word, model.source)), " "))
        more = [Paragraph((f"And {count(len(others))} more: ", *listed))]
    return [Paragraph((opening, states)), table, *more]


def _row(word: UnreachableWord, source: str) -> tuple[str, ...]:
    if not word.between:
        between, proof = "–", "forbidden"
    else:
        between = " · ".join(legible(other, source) for other in word.between)
        proof = "exact" if word.is_exact else f"lead ≤ {power(word.lead)}"
    return legible(word.word, source), count(word.index), between, proof
