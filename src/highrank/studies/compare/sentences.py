"""What a comparison says, in sentences: the answer, and which head to take."""

import inspect
import math
from collections.abc import Iterator, Sequence

from highrank.analysis.contrasts import Contrast
from highrank.heads import head_class
from highrank.presets.small import small_for
from highrank.studies.compare.plan import Plan
from highrank.studies.compare.result import Cost, Recommendation, Regime, Row
from highrank.studies.compare.source import LANGUAGES
from highrank.studies.compare.variant import Variant, has_components

TITLES = {"tokens": "equal tokens", "time": "equal time"}


def percent(nats: float) -> str:
    """A difference of losses as one of perplexities: "12.3 %"."""
    return f"{abs(math.expm1(nats)) * 100:.1f} %"


def amount_text(regime: Regime) -> str:
    if regime.name == "tokens":
        return f"{regime.amount:,.0f} tokens"
    return f"{regime.amount:,.0f} CPU seconds"


def interval_text(contrast: Contrast) -> str:
    """Of the perplexity, relative to the control's: "-3.1 % to +0.4 %"."""
    low, high = (math.expm1(value) * 100 for value in (contrast.low, contrast.high))
    return f"{low:+.1f} % to {high:+.1f} %"


def main_regime(regimes: Sequence[Regime]) -> Regime | None:
    """Equal time where it was measured."""
    found = {regime.name: regime for regime in regimes}
    return found.get("time", found.get("tokens"))


def answer(plan: Plan, regimes: Sequence[Regime], is_complete: bool, corpus: str) -> str:
    """The finding in a sentence or two."""
    regime = main_regime(regimes)
    if regime is None:
        return f"Nothing has been measured on {corpus} yet."
    partial = "" if is_complete else "So far: "
    if len(regime.seeds) < 2:
        best = _row(regime, regime.best)
        return (
            f"{partial}One seed decides nothing: on {corpus}, {best.label} (d = "
            f"{best.embedding_size}) has the lowest loss at {TITLES[regime.name]}, but seeds "
            "differ, too. Take --seeds 3 or more."
        )
    parts = [_finding(regime, corpus), *_sizes(regime), _bottleneck(plan, regimes)]
    return partial + " ".join(part for part in parts if part)


def _finding(regime: Regime, corpus: str) -> str:
    where = f"on {corpus} at {TITLES[regime.name]} ({amount_text(regime)})"
    winner = _winner(regime)
    if winner is not None and winner.valid is not None:
        test = "" if winner.test is None else f"; on test {percent(winner.test.difference)}"
        return (
            f"{winner.label} (d = {winner.embedding_size}) beats the control {where}: its "
            f"perplexity on valid is {percent(winner.valid.difference)} lower (95 % interval "
            f"{interval_text(winner.valid)}{test})."
        )
    assert regime.detectable is not None
    if regime.contrast is not None and regime.contrast.verdict == "worse":
        control = _row(regime, regime.best_control)
        return (
            f"One softmax with d = {control.embedding_size} wins {where}: every other head has a "
            f"higher loss, the best of them by {percent(regime.contrast.difference)} of the "
            f"perplexity ({interval_text(regime.contrast)})."
        )
    finding = "No difference seen {}: no head is better than the control with one component."
    if any(one.contrast.verdict == "better" for one in regime.smaller):
        size = _row(regime, regime.best_control).embedding_size
        finding = f"One softmax with d = {size} is enough {{}}: no head is seen to be better."
    return (
        f"{finding.format(where)} A difference of {percent(regime.detectable)} in perplexity would "
        "have been found with a probability of 80 %."
    )


def _sizes(regime: Regime) -> Iterator[str]:
    """Where a larger d alone beats every head of a smaller one."""
    control = _row(regime, regime.best_control)
    for one in regime.smaller:
        if one.contrast.verdict == "better":
            yield (
                f"d = {one.embedding_size} is too small here: one softmax with d = "
                f"{control.embedding_size} beats every head with it, its perplexity is "
                f"{percent(one.contrast.difference)} lower than that of the best of them, "
                f"{one.label} ({interval_text(one.contrast)})."
            )


def _bottleneck(plan: Plan, regimes: Sequence[Regime]) -> str:
    """Whether mixtures, which have no bound of rank, win for each token."""
    regime = next((one for one in regimes if one.name == "tokens"), None)
    mixtures = {variant.name for variant in plan.variants if variant.is_mixture}
    if regime is None:
        return ""
    rows = [row for row in regime.rows if row.name in mixtures and row.single is not None]
    if not rows:
        return ""
    better = [row for row in rows if row.single is not None and row.single.verdict == "better"]
    if not better and any(one.contrast.verdict == "better" for one in regime.smaller):
        return ""
    if not better:
        return (
            "At equal tokens no mixture is seen to be better than one softmax"
            f"{_findable(regime)}: nothing here says that the bottleneck limits this model on this "
            "text."
        )
    best = min(better, key=lambda row: row.valid_loss)
    is_beaten = any(
        one.embedding_size == best.embedding_size and one.contrast.verdict == "better"
        for one in regime.smaller
    )
    if is_beaten or (regime.contrast is not None and regime.contrast.verdict == "worse"):
        control = _row(regime, regime.best_control)
        return (
            f"With d = {best.embedding_size} the bottleneck matters, {best.label} is better than "
            f"the softmax of that d; a softmax of d = {control.embedding_size} does without it."
        )
    assert best.single is not None
    control = _row(regime, regime.best_control)
    # Only a larger softmax that was measured, and lost, leaves the bound of rank as the reason.
    is_certain = (
        control.embedding_size > best.embedding_size
        and regime.best == best.name
        and regime.contrast is not None
        and regime.contrast.verdict == "better"
    )
    text = (
        f"The bottleneck {'matters' if is_certain else 'may matter'} here: at equal tokens "
        f"{best.label} (d = {best.embedding_size}) is {percent(best.single.difference)} better "
        f"than one softmax of that d ({best.single_label})."
    )
    if is_certain:
        return text
    return (
        f"{text} A larger softmax would show whether the bound of rank is the reason: --embedding "
        f"{best.embedding_size} {2 * best.embedding_size}."
    )


def _findable(regime: Regime) -> str:
    if regime.detectable is None:
        return ""
    return f" (a gain of {percent(regime.detectable)} would have been found)"


def _winner(regime: Regime) -> Row | None:
    """The best row, if it is better than its control and not worse than the best control."""
    better = [r for r in regime.rows if r.valid is not None and r.valid.verdict == "better"]
    if not better:
        return None
    best, control = min(better, key=lambda row: row.valid_loss), _row(regime, regime.best_control)
    return best if best.valid_loss < control.valid_loss else None


def _row(regime: Regime, name: str) -> Row:
    return next(row for row in regime.rows if row.name == name)


def recommend(
    plan: Plan, regimes: Sequence[Regime], costs: Sequence[Cost], num_train: int
) -> Recommendation | None:
    """The head, K and d to take, by the validation loss; None from one seed.

    Args:
        num_train: tokens of the corpus' whole training split, which the command reads.
    """
    regime = main_regime(regimes)
    if regime is None or len(regime.seeds) < 2:
        return None
    winner, control = _winner(regime), _row(regime, regime.best_control)
    chosen = winner or control
    name = chosen.name.removesuffix("+cache")
    variant = next(variant for variant in plan.variants if variant.name == name)
    if winner is None:
        reason = (
            f"no head was seen to be better than the control at {TITLES[regime.name]}, so the "
            "simplest is taken"
        )
    else:
        assert winner.valid is not None
        reason = (
            f"at {TITLES[regime.name]} its loss on valid is {-winner.valid.difference:.4f} nats "
            f"below the control's ({interval_text(winner.valid)} in perplexity, "
            f"{len(regime.seeds)} seeds)"
        )
    others = _indistinguishable(regime, chosen)
    if others:
        reason += f"; as good, as far as one can tell: {', '.join(others)}"
    cost = next((cost for cost in costs if cost.name == name), None)
    if cost is not None:
        reason += f"; a token costs {cost.ratio:.2f} times the control's CPU time"
    number = "" if "K = " in chosen.label else f", K = {variant.num_components}"
    return Recommendation(
        variant=name,
        text=f"{chosen.label}{number}, d = {variant.embedding_size}",
        description=description(variant),
        command="" if plan.corpus in LANGUAGES else command(plan, variant, chosen.name, num_train),
        evidence=reason,
    )


def _indistinguishable(regime: Regime, chosen: Row) -> list[str]:
    """Rows within the noise of the chosen one."""
    if regime.detectable is None:
        return []
    return [
        f"{row.label} (d = {row.embedding_size})"
        for row in regime.rows
        if row.name != chosen.name
        and abs(row.valid_loss - chosen.valid_loss) < regime.detectable / 2
    ]


def description(variant: Variant) -> str:
    """What the head is; as its class says in its first line, unless it is a plain softmax."""
    if variant.config.head.kind == "softmax":
        is_tied = variant.role == "other context"
        return (
            f"One softmax over {'the hidden state itself' if is_tied else 'tanh(Linear(hidden))'}."
        )
    text = inspect.getdoc(head_class(variant.config.head.kind)) or ""
    return text.splitlines()[0] if text else ""


def command(plan: Plan, variant: Variant, row: str, num_train: int) -> str:
    """What trains this head with this network in full: annealed, and for as long as `small` is.

    With a cache it is the evaluation that makes the row.
    """
    model, head = variant.config.model, variant.config.head
    sizes = " ".join(map(str, model.hidden_sizes))
    text = f"highrank train small --corpus {plan.corpus} --head.kind {head.kind}"
    if has_components(head.kind):
        text += f" --head.num-components {variant.num_components}"
    for name, value in head.options.items():
        text += f" --head.{name.replace('_', '-')} {value}"
    text += f" --model.embedding-size {variant.embedding_size} --model.hidden-sizes {sizes}"
    text += f" --train.epochs {small_for(plan.corpus, num_train).train.epochs}"
    return text if row == variant.name else f"{text}; then highrank evaluate RUN --cache --search"
