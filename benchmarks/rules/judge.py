"""How often a rule is right: thresholds are chosen on one half of the models, judged on the other.

A mixture that wins at least 3 % of the perplexity over the better of its controls makes "no" wrong,
one that wins less than 1 % makes "yes" wrong; in between neither is.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from highrank.studies.audit.answer import LIMITED, fit_verdict

Model = dict[str, Any]
Rule = Callable[[Model], str]
WRONG_NO, WRONG_YES = 0.03, 0.01
MOST_WRONG = 0.05
COLUMNS = ("right", "wrong no", "wrong yes", "cannot tell")
CONTROLS = ("softmax", "moc")


def gain(model: Model, over: Sequence[str] = CONTROLS) -> float:
    """How much lower the perplexity of the trained mixture is than the best of these."""
    kinds = [kind for kind in ("mos", *over) if kind in model["nats"][0]]
    nats = {kind: fmean(found[kind] for found in model["nats"]) for kind in kinds}
    return -math.expm1(nats.pop("mos") - min(nats.values()))


def verdict_of_spectrum(model: Model) -> str:
    """The rule of the audit before fits."""
    measures = model["measures"]
    if measures["raw 1e-04"] >= 0.9:
        return "yes"
    return "no" if measures["raw 1e-03"] <= 0.5 else "cannot tell"


def by_threshold(key: str, limit: float) -> Rule:
    return lambda model: "yes" if model["measures"][key] >= limit else "no"


def by_fit(model: Model, limited: float = LIMITED) -> str:
    """The rule of `highrank audit`."""
    if model["size"] >= model["vocab_size"] - 1:
        return "no"
    found, own = model["measures"], over_own(model)
    steps = int(found["fit num_steps"])
    return fit_verdict(won_by_fit(model), found["fit error"], own, steps, limited).text


def won_by_fit(model: Model) -> float:
    """What the fitted mixture wins over the best head with the bound, in nats."""
    return min(float(model["measures"]["fit gain"]), over_own(model))


def over_own(model: Model) -> float:
    """What the fitted mixture wins over the model's own head, in nats."""
    found = model["measures"]
    return float(found["fit nats"] - found["fit mos_nats"])


def judge(rule: Rule, models: Iterable[Model], over: Sequence[str] = CONTROLS) -> Counter[str]:
    found: Counter[str] = Counter()
    for model in models:
        answer, won = rule(model), gain(model, over)
        if answer == "cannot tell":
            found[answer] += 1
        elif answer == "no" and won >= WRONG_NO:
            found["wrong no"] += 1
        elif answer == "yes" and won < WRONG_YES:
            found["wrong yes"] += 1
        else:
            found["right"] += 1
    return found


def best_threshold(key: str, models: Sequence[Model]) -> float:
    """The one with the fewest wrong answers."""
    limits = [*sorted({float(model["measures"][key]) for model in models}), math.inf]
    return max(limits, key=lambda limit: judge(by_threshold(key, limit), models)["right"])


def least_limited(models: Sequence[Model]) -> float:
    """The least `LIMITED` with at most 5 % wrong answers among these models."""
    for thousandths in range(1, 100):
        limit = thousandths / 1000
        found = judge(partial(by_fit, limited=limit), models)
        if found["wrong no"] + found["wrong yes"] <= MOST_WRONG * len(models):
            return limit
    return math.inf


def scores(models: Sequence[Model], keys: Sequence[str]) -> dict[str, Counter[str]]:
    """Each rule on the second half; the halves alternate. Composed heads have no spectra here."""
    plain = [model for model in models if keys[0] in model["measures"]]
    first, second = plain[::2], plain[1::2]
    found = {"audit before: effective rank of b": judge(verdict_of_spectrum, second)}
    for key in keys:
        limit = best_threshold(key, first)
        found[f"{key} ≥ {limit:.3g}"] = judge(by_threshold(key, limit), second)
    limit = least_limited(first)
    found[f"fit, limited ≥ {limit:g}"] = judge(partial(by_fit, limited=limit), second)
    found["audit, all models"] = judge(by_fit, models)
    found["– against softmax alone"] = judge(by_fit, models, ("softmax",))
    return found
