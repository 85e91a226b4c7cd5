"""The page's part on the components of a mixture: are they used, and do they differ?"""

import math
from collections.abc import Sequence

from highrank.experiments.audit_result import MixtureFacts, ModelAudit
from highrank.reports import audit_text
from highrank.reports.audit_charts import draw_differences, draw_use
from highrank.reports.audit_verdict import mixture_verdict
from highrank.reports.audit_words import legible, legible_context
from highrank.reports.charts import to_svg
from highrank.reports.page import Block, Column, Figure, Grid, Paragraph, Section, Strong, Table

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
