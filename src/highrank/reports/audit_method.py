"""The page's part on how an audit was measured, and how to measure it again."""

from collections.abc import Callable, Sequence

from highrank.experiments.audit_result import AuditResult, ModelAudit
from highrank.reports import audit_text
from highrank.reports.audit_table import count
from highrank.reports.audit_verdict import millions
from highrank.reports.audit_words import legible
from highrank.reports.bench_table import environment_text
from highrank.reports.page import Block, Code, Column, Paragraph, Section, Strong, Table
from highrank.reports.tables import duration

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
