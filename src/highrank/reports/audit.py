"""The page of `highrank audit`: what an output layer can say, and what its rank is worth."""

from collections.abc import Callable, Sequence
from pathlib import Path

from highrank.experiments.audit_result import AuditResult, ModelAudit, RankAt
from highrank.reports import audit_text
from highrank.reports.audit_charts import draw_growth, draw_residuals, draw_spectra
from highrank.reports.audit_method import method_section
from highrank.reports.audit_mixture import mixture_section
from highrank.reports.audit_reachability import reachability_section
from highrank.reports.audit_table import count, divergence, power, rank_rows, size_rows
from highrank.reports.audit_verdict import EPSILON, comparison, model_verdict
from highrank.reports.audit_words import short_names
from highrank.reports.charts import save_png, to_svg
from highrank.reports.demo_verdict import listed
from highrank.reports.page import (
    Block,
    Column,
    Figure,
    Grid,
    Page,
    Paragraph,
    Section,
    Strong,
    Table,
)
from highrank.reports.tables import duration


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
