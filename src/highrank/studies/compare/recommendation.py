"""Which head to take, why, and the command that trains it with the recipe of the comparison."""

from collections.abc import Sequence
from dataclasses import replace

from highrank.analysis.contrasts import Verdict
from highrank.presets.dropout import OPTIONS
from highrank.presets.small import fitted
from highrank.studies.compare.command import train_command
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.presets import LANGUAGES
from highrank.studies.compare.record import METHODS
from highrank.studies.compare.result import Cost, Recommendation, RegimeResult, Row
from highrank.studies.compare.sentences import (
    describe,
    interval_text,
    main_regime,
    pays,
    percent,
    winner,
)
from highrank.studies.compare.variant import Role, Variant

# What `fitted` would change: all but the length is the recipe.
RECIPE = ("batch.batch-size", "valid-batch-size", "train.warmup-steps")


def choose(regime: RegimeResult, costs: Sequence[Cost]) -> Row:
    """The row to take: the best that beats the control and pays for its time, or the control."""
    rows = [row for row in regime.rows if row.valid is None or pays(row, regime, costs)]
    return winner(replace(regime, rows=tuple(rows))) or regime.row(regime.best_control)


def recommend(
    plan: Plan, regimes: Sequence[RegimeResult], costs: Sequence[Cost], num_train: int
) -> Recommendation | None:
    """The head, K and d to take, by the validation loss; None from one seed.

    Args:
        num_train: tokens of the corpus' whole training split, which the command reads.
    """
    regime = main_regime(regimes)
    if regime is None or len(regime.seeds) < 2:
        return None
    choice = choose(regime, costs)
    name = _variant_name(choice)
    variant = next(variant for variant in plan.variants if variant.name == name)
    number = "" if "K = " in choice.label else f", K = {variant.num_components}"
    return Recommendation(
        variant=name,
        row=choice.name,
        text=f"{choice.label}{number}, d = {variant.embedding_size}",
        description=describe(variant),
        command=_command(plan, variant, choice.name, num_train),
        evidence=_evidence(regime, choice, costs),
    )


def _evidence(regime: RegimeResult, choice: Row, costs: Sequence[Cost]) -> str:
    ratios = {cost.name: cost.ratio for cost in costs}
    if choice.valid is not None:
        parts = [
            f"at equal {regime.name} its loss on valid is {-choice.valid.difference:.4f} nats "
            f"below the control's ({interval_text(choice.valid)} in perplexity, "
            f"{len(regime.seeds)} seeds)"
        ]
    elif winner(regime) is None:
        parts = [
            f"no head was seen to be better than the control at equal {regime.name}, so the "
            "simplest is taken"
        ]
    else:
        parts = ["no head that was better at equal tokens pays for its time"]
    if slow := _too_slow(regime, choice, costs):
        parts.append(f"better for each token, but too slow to pay: {', '.join(slow)}")
    if others := _indistinguishable(regime, choice, costs):
        parts.append(f"as good, as far as one can tell: {', '.join(others)}")
    if ratio := ratios.get(_variant_name(choice)):
        parts.append(f"a token costs {ratio:.2f} times the control's CPU time")
    return "; ".join(parts)


def _too_slow(regime: RegimeResult, choice: Row, costs: Sequence[Cost]) -> list[str]:
    """Rows that would have been chosen."""
    ratios = {cost.name: cost.ratio for cost in costs}
    return [
        f"{row.label} (d = {row.embedding_size}, {percent(row.valid.difference)} lower perplexity "
        f"at {ratios[row.name]:.2f} times the time)"
        for row in regime.rows
        if row.valid is not None
        and row.valid.verdict is Verdict.BETTER
        and row.valid_loss < choice.valid_loss
        and not pays(row, regime, costs)
    ]


def _indistinguishable(regime: RegimeResult, choice: Row, costs: Sequence[Cost]) -> list[str]:
    """Rows within the noise of the chosen one."""
    if regime.detectable is None:
        return []
    return [
        f"{row.label} (d = {row.embedding_size})"
        for row in regime.rows
        if row.name != choice.name
        and abs(row.valid_loss - choice.valid_loss) < regime.detectable / 2
        and pays(row, regime, costs)
    ]


def _command(plan: Plan, variant: Variant, row: str, num_train: int) -> str:
    """The command that trains this variant by its own recipe, as long as `small` does.

    With another method it is the evaluation that makes the row. An exact language has no command.
    """
    if plan.corpus in LANGUAGES:
        return ""
    # The recipe has no end of its own; batches are those of the comparison, and dropouts, too,
    # unless they were chosen by its length.
    config = replace(variant.config, corpus=plan.corpus)
    kept = OPTIONS if plan.dropout is None else ()
    if variant.role is Role.OTHER_SIZE:
        kept = ("head.dropout", *kept)
    length = fitted(config, num_train, given=(*RECIPE, *kept))
    text = train_command(length, num_train)
    options = {"cache": "--cache --search", "temperature": "--baselines"}
    method = row.removeprefix(variant.name).removeprefix("+")
    return f"{text}; then highrank evaluate RUN {options[method]}" if method else text


def _variant_name(row: Row) -> str:
    for method in METHODS:
        if row.name.endswith(f"+{method}"):
            return row.name.removesuffix(f"+{method}")
    return row.name
