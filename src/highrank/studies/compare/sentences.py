"""Sentences of a comparison: the answer in one and in several, the plan, and notes."""

import inspect
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from highrank.analysis.contrasts import Contrast, Verdict
from highrank.heads import head_class
from highrank.studies.compare.plan import Plan, Regime
from highrank.studies.compare.presets import open_source
from highrank.studies.compare.record import break_even, curves_of
from highrank.studies.compare.result import CompareResult, Cost, Payoff, RegimeResult, Row
from highrank.studies.compare.variant import Role, Variant

# Nats that twice the tokens would win, and seconds for each CPU second, that deserve a note.
WORTH_MORE, MUCH_WAITING = 0.05, 1.3
# Where more of the time than this is no training, a part of the text would be compared better.
MUCH_EVALUATING, READINGS = 0.5, 4


def percent(nats: float) -> str:
    """A difference of losses as one of perplexities: "12.3 %"."""
    return f"{abs(math.expm1(nats)) * 100:.1f} %"


def amount_text(regime: RegimeResult) -> str:
    unit = "tokens" if regime.name is Regime.TOKENS else "CPU seconds"
    return f"{regime.amount:,.0f} {unit}"


def interval_text(contrast: Contrast) -> str:
    """Interval of the perplexity, relative to the control's: "-3.1 % to +0.4 %"."""
    low, high = (math.expm1(value) * 100 for value in (contrast.low, contrast.high))
    return f"{low:+.1f} % to {high:+.1f} %"


def main_regime(regimes: Sequence[RegimeResult]) -> RegimeResult | None:
    """Equal time where it was measured."""
    found = {regime.name: regime for regime in regimes}
    return found.get(Regime.TIME, found.get(Regime.TOKENS))


def verdict(regimes: Sequence[RegimeResult], costs: Sequence[Cost], corpus: str) -> str:
    """The answer in at most twelve words."""
    regime = main_regime(regimes)
    if regime is None:
        return "Nothing has been measured yet."
    if len(regime.seeds) < 2:
        return "One seed decides nothing."
    if len(bests := best_by_network(regime)) > 1:
        return _verdict_of_networks(bests)
    if (row := winner(regime)) is not None:
        if not pays(row, regime, costs):
            return f"{row.label} wins per token, not per second."
        return f"{row.label} beats one softmax on {corpus}."
    if _is(regime.contrast, Verdict.WORSE):
        return f"One softmax wins on {corpus}."
    return f"No head is seen to beat one softmax on {corpus}."


def answer(
    plan: Plan,
    regimes: Sequence[RegimeResult],
    costs: Sequence[Cost],
    is_complete: bool,
    corpus: str,
) -> str:
    """The finding in a sentence or two."""
    regime = main_regime(regimes)
    if regime is None:
        return f"Nothing has been measured on {corpus} yet."
    partial = "" if is_complete else "So far: "
    if len(regime.seeds) < 2:
        best = regime.row(regime.best)
        return (
            f"{partial}One seed decides nothing: on {corpus}, {best.label} (d = "
            f"{best.embedding_size}) has the lowest loss at equal {regime.name}, but seeds "
            "differ, too. Take --seeds 3 or more."
        )
    if len(bests := best_by_network(regime)) > 1:
        parts = [_finding_of_networks(bests, regime, corpus), _bottleneck(plan, regimes)]
    else:
        finding, payoff = _finding(regime, corpus), _payoff(regime, costs)
        parts = [finding, payoff, *_sizes(regime), _bottleneck(plan, regimes)]
    return partial + " ".join(part for part in parts if part)


def best_by_network(regime: RegimeResult) -> dict[str, Row]:
    """The row with the lowest loss on valid of each network."""
    found: dict[str, Row] = {}
    for row in sorted(regime.rows, key=lambda row: row.valid_loss):
        found.setdefault(row.network, row)
    return found


def head_label(row: Row) -> str:
    """The label without the network."""
    return row.label.removeprefix(f"{row.network}: ")


def _verdict_of_networks(bests: Mapping[str, Row]) -> str:
    better = [row for row in bests.values() if _is(row.valid, Verdict.BETTER)]
    heads = {head_label(row) for row in better}
    if not better:
        return "No head is seen to beat one softmax on any network."
    if len(better) < len(bests):
        return f"Heads beat one softmax on {len(better)} of {len(bests)} networks."
    if len(heads) == 1:
        return f"{heads.pop()} is best on every network."
    return "Heads beat one softmax on every network; which is best differs."


def _finding_of_networks(bests: Mapping[str, Row], regime: RegimeResult, corpus: str) -> str:
    """The best head of each network against that network's control, and the best of all."""
    parts = []
    for network, row in bests.items():
        if row.valid is None:
            parts.append(f"{network}: no head has a lower loss than the control")
            continue
        seen = "" if _is(row.valid, Verdict.BETTER) else ", no difference seen"
        parts.append(f"{network}: {head_label(row)} ({interval_text(row.valid)}{seen})")
    best = regime.row(regime.best)
    return (
        f"On {corpus} at equal {regime.name} ({amount_text(regime)}) the best head of each "
        f"network, its perplexity against that of the network's own control: {'; '.join(parts)}. "
        f"The lowest loss of all has {best.label}."
    )


def _finding(regime: RegimeResult, corpus: str) -> str:
    where = f"on {corpus} at equal {regime.name} ({amount_text(regime)})"
    row, size = winner(regime), regime.row(regime.best_control).embedding_size
    if row is not None and row.valid is not None:
        test = "" if row.test is None else f"; on test {percent(row.test.difference)}"
        return (
            f"{row.label} (d = {row.embedding_size}) beats the control {where}: its perplexity on "
            f"valid is {percent(row.valid.difference)} lower (95 % interval "
            f"{interval_text(row.valid)}{test})."
        )
    if _is(regime.contrast, Verdict.WORSE):
        assert regime.contrast is not None
        return (
            f"One softmax with d = {size} wins {where}: every other head has a "
            f"higher loss, the best of them by {percent(regime.contrast.difference)} of the "
            f"perplexity ({interval_text(regime.contrast)})."
        )
    finding = f"No difference seen {where}: no head is better than the control with one component."
    if any(_is(one.contrast, Verdict.BETTER) for one in regime.smaller):
        finding = f"One softmax with d = {size} is enough {where}: no head is seen to be better."
    assert regime.detectable is not None
    return (
        f"{finding} A difference of {percent(regime.detectable)} in perplexity would "
        "have been found with a probability of 80 %."
    )


def _payoff(regime: RegimeResult, costs: Sequence[Cost]) -> str:
    """That the winner at equal tokens is too slow, if it is."""
    row = winner(regime)
    if row is None or pays(row, regime, costs):
        return ""
    ratio = next(cost.ratio for cost in costs if cost.name == row.name)
    return (
        f"It does not pay for its time: a token costs {ratio:.2f} times the control's, which in as "
        "much time would read more."
    )


def _sizes(regime: RegimeResult) -> Iterator[str]:
    """Where a larger d alone beats every head of a smaller one."""
    control = regime.row(regime.best_control)
    for one in regime.smaller:
        if _is(one.contrast, Verdict.BETTER):
            yield (
                f"d = {one.embedding_size} is too small here: one softmax with d = "
                f"{control.embedding_size} beats every head with it, its perplexity is "
                f"{percent(one.contrast.difference)} lower than that of the best of them, "
                f"{one.label} ({interval_text(one.contrast)})."
            )


def _bottleneck(plan: Plan, regimes: Sequence[RegimeResult]) -> str:
    """Whether mixtures, which have no bound of rank, win for each token."""
    regime = next((one for one in regimes if one.name is Regime.TOKENS), None)
    mixtures = {variant.name for variant in plan.variants if variant.is_mixture}
    if regime is None or not any(row.name in mixtures and row.single for row in regime.rows):
        return ""
    too_small = {o.embedding_size for o in regime.smaller if _is(o.contrast, Verdict.BETTER)}
    better = [
        row for row in regime.rows if row.name in mixtures and _is(row.single, Verdict.BETTER)
    ]
    if not better:
        findable = ""
        if regime.detectable is not None:
            findable = f" (a gain of {percent(regime.detectable)} would have been found)"
        if too_small:
            return ""
        return (
            f"At equal tokens no mixture is seen to be better than one softmax{findable}: nothing "
            "here says that the bottleneck limits this model on this text."
        )
    best, control = min(better, key=lambda row: row.valid_loss), regime.row(regime.best_control)
    has_networks = len({row.network for row in regime.rows}) > 1
    if not has_networks and (
        best.embedding_size in too_small or _is(regime.contrast, Verdict.WORSE)
    ):
        return (
            f"With d = {best.embedding_size} the bottleneck matters, {best.label} is better than "
            f"the softmax of that d; a softmax of d = {control.embedding_size} does without it."
        )
    # Only a larger softmax that was measured, and lost, leaves the bound of rank as the reason.
    is_certain = (
        not has_networks
        and control.embedding_size > best.embedding_size
        and regime.best == best.name
        and _is(regime.contrast, Verdict.BETTER)
    )
    assert best.single is not None
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


def _is(contrast: Contrast | None, verdict: Verdict) -> bool:
    return contrast is not None and contrast.verdict is verdict


def winner(regime: RegimeResult) -> Row | None:
    """The best row, if it is better than its control and not worse than the best control."""
    better = [row for row in regime.rows if _is(row.valid, Verdict.BETTER)]
    best = min(better, key=lambda row: row.valid_loss, default=None)
    if best is None or best.valid_loss >= regime.row(regime.best_control).valid_loss:
        return None
    return best


def pays(row: Row, regime: RegimeResult, costs: Sequence[Cost]) -> bool:
    """Whether nothing says that a row is too slow; at equal time it has paid for it."""
    found = {cost.name: cost.verdict for cost in costs}
    return regime.name is Regime.TIME or found.get(row.name) is not Payoff.DOES_NOT_PAY


def describe(variant: Variant) -> str:
    """The head as its class describes it in its first line, unless it is a plain softmax."""
    if variant.config.head.kind == "softmax":
        is_linear = variant.config.head.activation == "identity"
        context = "Linear(hidden)" if is_linear else "tanh(Linear(hidden))"
        if variant.role is Role.OTHER_CONTEXT:
            return "One softmax over the hidden state itself."
        if variant.role is Role.OTHER_SIZE:
            return (
                f"One softmax over {context}, with dropout there and an output embedding of its "
                "own, which makes it larger than the others."
            )
        return f"One softmax over {context}."
    name, plus, further = variant.config.head.kind.partition("+")
    text = (inspect.getdoc(head_class(name)) or "").partition("\n")[0]
    return f"{text} Beside it: {further.replace('+', ', ')}." if plus else text


def plan_note(plan: Plan, duration: Callable[[float], str]) -> str:
    """Number of runs, where they are measured, and how long everything takes.

    Args:
        duration: seconds as text.
    """
    time = "" if plan.cpu_seconds is None else f", and at {plan.cpu_seconds:,.0f} CPU seconds"
    note = (
        f"{len(plan.variants)} variants × {len(plan.seeds)} seeds, measured at "
        f"{plan.num_tokens:,} tokens{time} of training each; {plan.jobs} at a time, with a "
        f"reserve: about {duration(plan.seconds)}. CPU s and minutes are those of one run."
    )
    if plan.dropout is not None:
        note += f" Dropout {plan.dropout:g}, by how often they read the text."
    beginning = READINGS * plan.num_tokens
    num_train = len(open_source(plan.corpus, plan.max_tokens).split("train"))
    if plan.evaluating > MUCH_EVALUATING and beginning < num_train:
        note += (
            f" Validations and tests take {plan.evaluating:.0%} of this time: with --max-tokens "
            f"{beginning} all splits are shorter, and more of it is training."
        )
    if plan.waiting > MUCH_WAITING:
        note += (
            f" The machine is busy now: a second of CPU time takes {plan.waiting:.1f} seconds, and "
            f"if it stays so, everything takes about {duration(plan.waiting * plan.seconds)}."
        )
    return note


def regime_note(regime: RegimeResult) -> str:
    """Meaning of the intervals, and the smallest difference that would be found."""
    if regime.error is None or regime.detectable is None:
        return "One seed: no interval, and no winner."
    correction = "Dunnett's" if regime.is_pooled else "Holm's, as errors of variants differ"
    return (
        f"Mean ± standard deviation over {len(regime.seeds)} seeds. Intervals: 95 %, paired by "
        f"seed, {regime.degrees} degrees of freedom, corrected for the number of heads "
        f"({correction}). Noise of one run: {percent(regime.error)} of its perplexity. The "
        f"smallest difference that would be found in 80 % of comparisons: "
        f"{percent(regime.detectable)}."
    )


def notes(result: CompareResult) -> Iterator[str]:
    """The n-gram alone, and warnings about single runs, their length and the machine."""
    disturbed = []
    for variant in result.variants:
        where = f"{variant.label} (d = {variant.embedding_size})"
        if variant.num_diverged:
            yield f"Diverged: {variant.num_diverged} of the runs of {where}; it is left out."
        if variant.num_disturbed:
            disturbed.append(f"{variant.num_disturbed} of {where}")
    if disturbed:
        yield (
            f"Disturbed runs: {', '.join(disturbed)}. They waited for the processor, or changed "
            "their speed, more than the others: do not trust their time."
        )
    yield from _noise_notes(result)
    if (alone := result.ngram) is not None:
        yield (
            f"A {alone.order}-gram alone (modified Kneser–Ney, {alone.table}, {alone.seconds:.1f} "
            "s, no seeds to differ): perplexity "
            f"{math.exp(alone.valid_loss):.4g} on valid, {math.exp(alone.test_loss):.4g} on test."
        )
    yield from _length_note(result)
    waiting = [run.waiting for run in result.runs if run.cpu_seconds > 0]
    if waiting and statistics.median(waiting) > MUCH_WAITING:
        yield (
            f"The machine was busy: a second of CPU time took {statistics.median(waiting):.1f} "
            "seconds, and everything took so much longer."
        )
    if not result.is_complete:
        yield f"Unfinished. Resume with: highrank compare --resume {result.folder}"


def _noise_notes(result: CompareResult) -> Iterator[str]:
    """The variant that widens the intervals of all others, in each regime."""
    for regime in result.regimes:
        if (noisy := regime.noisy) is None or regime.detectable is None:
            continue
        row = regime.row(noisy.name)
        text = (
            f"At equal {regime.name} the seeds of {row.label} (d = {row.embedding_size}) differ "
            f"{noisy.ratio:.1f} times as much as those of the others, which blurs all differences: "
            f"{percent(regime.detectable)} of the perplexity would be found"
        )
        if noisy.detectable is None:
            yield f"{text}. Every head is compared with it: take more --seeds."
        else:
            finer = f"{percent(noisy.detectable)} without it"
            yield f"{text}, and {finer}. Compare again without it, or with more --seeds."


def _length_note(result: CompareResult) -> Iterator[str]:
    """How far the runs are from their end."""
    regime, curves = result.at_equal_tokens, curves_of(result.runs, result.control.name)
    if regime is None or not curves:
        return
    more = break_even(curves, regime.amount, 2.0)
    if more >= WORTH_MORE:
        yield (
            f"At equal tokens each run has read {regime.amount / result.num_train:.2g} times the "
            f"{result.num_train:,} training tokens. Twice as many would lower the control's "
            f"perplexity by about {percent(-more)}, and may change the order: give it a larger "
            "--budget before you rely on it."
        )
