"""The page's part on words that no hidden state makes the most likely."""

from collections.abc import Sequence

from highrank.experiments.audit_result import ModelAudit, UnreachableWord
from highrank.reports import audit_text
from highrank.reports.audit_table import count, power
from highrank.reports.audit_words import legible
from highrank.reports.page import Block, Code, Column, Paragraph, Section, Strong, Table
from highrank.reports.tables import duration

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
