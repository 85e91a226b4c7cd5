"""The page of `highrank audit`: what an output layer can say, and what its rank is worth.

The page's part on how an audit was measured, and how to measure it again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from highrank.report.figure import save_png, to_svg
from highrank.report.formats import duration, environment_text, legible, listed
from highrank.report.page import (
    Block,
    Code,
    Column,
    Figure,
    Grid,
    Page,
    Paragraph,
    Section,
    Strong,
    Table,
)
from highrank.studies.audit import text as audit_text
from highrank.studies.audit.charts import draw_growth, draw_residuals, draw_spectra
from highrank.studies.audit.result import AuditResult, ModelAudit, RankAt
from highrank.studies.audit.sections import mixture_section, reachability_section
from highrank.studies.audit.table import count, divergence, power, rank_rows, short_names, size_rows
from highrank.studies.audit.verdict import EPSILON, comparison, millions, model_verdict


def audit_page(result: AuditResult, command: str = "") -> Page:
    """What was found of one model, or of several side by side.

    Args:
        command: what was typed, for those who want to repeat it.
    """
    names, models = short_names(result.models), result.models
    return Page(
        title=f"What {listed(names) if len(names) < 3 else f'{len(names)} output layers'} can say",
        lead="An audit of the output layer: its rank, its spectrum, its unreachable "
        "words, the health of its mixture, and what all of this is worth.",
        sections=(
            _verdict(names, models),
            Section("At a glance", (_key_table(names, models),)),
            _spectrum(names, models),
            _growth(names, models),
            reachability_section(names, models),
            mixture_section(names, models),
            method_section(names, result, command),
        ),
        footer=f"highrank {result.environment.highrank} · {result.environment.date} UTC · "
        f"{duration(result.elapsed)}",
    )


def audit_picture(result: AuditResult, path: Path) -> None:
    """Write the spectra as a PNG, 1200 pixels wide."""
    figure = draw_spectra(short_names(result.models), result.models, size=(8, 4.5), margin=0.1)
    save_png(figure, path, dpi=150)


def _verdict(names: Sequence[str], models: Sequence[ModelAudit]) -> Section:
    found = [
        Paragraph((Strong(f"{name}: "), model_verdict(model)))
        for name, model in zip(names, models, strict=True)
    ]
    beside = comparison(names, models)
    if beside:
        found.append(Paragraph((Strong("Side by side. "), beside)))
    meaning = Paragraph(
        (Strong("What it means. "), f"{audit_text.MEANING} {audit_text.DIVERGENCE}")
    )
    return Section("The verdict", (*found, meaning, audit_text.CAUTION))


def _key_table(names: Sequence[str], models: Sequence[ModelAudit]) -> Table:
    rows = [*size_rows(models), *rank_rows(models)]
    return Table(
        title="The key numbers",
        caption=audit_text.KEY_CAPTION,
        columns=(Column("", False), *map(Column, names)),
        rows=tuple((label[0].upper() + label[1:], *cells) for label, *cells in rows),
    )


def _spectrum(names: Sequence[str], models: Sequence[ModelAudit]) -> Section:
    lines = "; ".join(
        f"{name}: {count(len(model.rank.singular_values))} values, the largest "
        f"{model.rank.largest:.4g}, {count(model.rank.comparable)} above float32’s round-off"
        for name, model in zip(names, models, strict=True)
    )
    effective = "; ".join(
        f"{name}: " + ", ".join(f"{e.rank} at {e.epsilon:g}" for e in model.rank.effective)
        for name, model in zip(names, models, strict=True)
    )
    figures = (
        Figure(
            svg=to_svg(draw_spectra(names, models)),
            title="The spectrum",
            caption=audit_text.SPECTRUM_CAPTION,
            description=f"Singular values in descending order, on log scales. {lines}.",
        ),
        Figure(
            svg=to_svg(draw_residuals(names, models)),
            title="What few directions leave",
            caption=audit_text.RESIDUAL_CAPTION,
            description=f"Residual against k. Effective ranks: {effective}.",
        ),
    )
    notes: list[Block] = []
    for name, model in zip(names, models, strict=True):
        if model.rank.bound is None:
            notes.append(_note(name, f"No bound: {model.rank.bound_reason}."))
        if model.rank.unknown:
            notes.append(_note(name, f"A rank is unknown: {model.rank.unknown}."))
    return Section("The spectrum", (Paragraph((audit_text.SPECTRUM,)), Grid(figures), *notes))


def _growth(names: Sequence[str], models: Sequence[ModelAudit]) -> Section:
    charts: tuple[tuple[str, str, Callable[[RankAt], int | None]], ...] = (
        (
            "Comparable rank",
            audit_text.GROWTH_CAPTION,
            lambda at: at.comparable,
        ),
        (
            f"Effective rank, ε = {power(EPSILON)}",
            f"Values that carry all but {EPSILON:.1%} of the sum of squares.",
            lambda at: {e.epsilon: e.rank for e in at.effective}.get(EPSILON),
        ),
    )
    figures = tuple(
        Figure(
            svg=to_svg(figure),
            title=title,
            caption=caption,
            description=f"{title} against the number of contexts. {_grown(names, models, pick)}",
        )
        for title, caption, pick in charts
        if (figure := draw_growth(names, models, pick)) is not None
    )
    text = Paragraph((audit_text.GROWTH,))
    missing = [
        _note(name, f"The comparable rank is unknown: {model.rank.unknown}.")
        for name, model in zip(names, models, strict=True)
        if model.rank.comparable is None
    ]
    return Section(
        "Rank and the number of contexts", (text, *([Grid(figures)] if figures else []), *missing)
    )


def _grown(
    names: Sequence[str], models: Sequence[ModelAudit], pick: Callable[[RankAt], int | None]
) -> str:
    lines = []
    for name, model in zip(names, models, strict=True):
        points = (f"{count(pick(at))} of {count(at.num_contexts)}" for at in model.rank.growth)
        lines.append(f"{name}: {', '.join(points)}; divergence {divergence(model)}.")
    return " ".join(lines)


def _note(name: str, text: str) -> Paragraph:
    return Paragraph((Strong(f"{name}: "), text))


FACTS: dict[str, Callable[[ModelAudit], str]] = {
    "Model": lambda m: legible(m.name, "run", 80),
    "Source": lambda m: m.source,
    "Architecture": lambda m: m.architecture,
    "Parameters": lambda m: millions(m.num_parameters),
    "Output embedding": lambda m: _embedding(m),
    "Text": lambda m: legible(m.text.name, "run", 80).replace("␣", " "),
    "SHA-256 of the text": lambda m: m.text.sha256[:12],
    "Tokens of the text": lambda m: count(m.text.num_tokens),
    "Contexts, T": lambda m: count(m.text.num_contexts),
    "Nats per token": lambda m: f"{m.text.nats:.4f}",
    "Matrix": lambda m: f"{count(m.rank.num_contexts)} × {count(m.rank.num_words)}",
    "Method": lambda m: f"{m.rank.method}: {m.rank.method_reason}",
    "Ceiling": lambda m: f"{count(m.rank.ceiling)}, by {m.rank.ceiling_reason}",
    "Bound": lambda m: (
        f"{'none' if m.rank.bound is None else count(m.rank.bound)}: {m.rank.bound_reason}"
    ),
    "Largest σ": lambda m: f"{m.rank.largest:.4g}",
    "Noise floor": lambda m: f"{m.rank.noise_floor:.1e}",
    "Time": lambda m: duration(m.elapsed),
}


def method_section(names: Sequence[str], result: AuditResult, command: str) -> Section:
    """Facts side by side, precision, versions and the command."""
    models = result.models
    table = Table(
        title="What was measured",
        caption="Ceiling: the highest rank that this measurement could have shown.",
        columns=(Column("", False), *(Column(name, False) for name in names)),
        rows=tuple((label, *map(fact, models)) for label, fact in FACTS.items()),
    )
    quick = audit_text.QUICK if result.quick else ""
    asked = f" {count(result.num_contexts)} contexts were asked for."
    blocks: list[Block] = [
        table,
        Paragraph((audit_text.PRECISION + asked + quick,)),
        Paragraph((f"{environment_text(result.environment)}.",)),
    ]
    if command:
        blocks.append(Paragraph((Strong("To measure it again: "), Code(command))))
    return Section("How this was measured", (*blocks, audit_text.REFERENCE))


def _embedding(model: ModelAudit) -> str:
    head = model.head
    parts = [
        head.dtype,
        "tied" if head.is_tied else "not tied",
        "with bias" if head.has_bias else "no bias",
    ]
    if head.scale != 1:
        parts.append(f"logits × {head.scale:g}")
    if head.softcap is not None:
        parts.append(f"soft-capped at {head.softcap:g}")
    return ", ".join(parts)
