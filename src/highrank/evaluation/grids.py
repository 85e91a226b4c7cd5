"""Settings of dynamic evaluation and of the cache that a search tries, static among them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, TypeVar

from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.dynamic import SEGMENT, DynamicSettings
from highrank.evaluation.temperature import TemperatureSettings

Settings = TypeVar("Settings", bound=DynamicSettings | CacheSettings | TemperatureSettings)
Number = TypeVar("Number", int, float)

# For segments of 5 tokens: Krause et al. (2018), and lower rates for models that have seen their
# training split often, or have a pointer.
LRS = (1e-5, 2e-5, 3e-5, 5e-5, 7e-5, 1e-4)
DECAYS = (1e-3, 2e-3, 3e-3, 5e-3)
# Tried where neither settings nor a search are asked for, on so many tokens of valid.
QUICK_LRS, QUICK_TOKENS = (1e-5, 2e-5, 5e-5), 2000
# Of valid, on which the one parameter of a temperature is fitted.
FIT_TOKENS = 10_000
# Of the cache.
WINDOWS = (100, 500, 2000)
THETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
# What may lie beyond a grid.
WIDENED = ("lr", "decay", "window", "theta", "weight")


def dynamic_grid(
    *,
    lr: Sequence[float] = (),
    epsilon: Sequence[float] = (),
    decay: Sequence[float] = (),
    convention: str = "paper",
    segment: int = SEGMENT,
    rule: Literal["rms", "sgd"] = "rms",
    adapt: Sequence[str] = (),
    is_search: bool = True,
) -> tuple[DynamicSettings, ...]:
    """All combinations of the given values, after a model that does not learn.

    Args:
        lr, decay: if empty, default ones, for longer segments larger in proportion.
        epsilon: if empty, the default.
        convention: of the values, a key of `highrank.evaluation.dynamic.CONVENTIONS`; only the
            paper's has defaults.
        segment, rule, adapt: as in `DynamicSettings`; all parameters adapt if it is empty.
        is_search: if not, no more than one value each. A given learning rate is then the only
            one; without one, a few are to be tried, with the default for what is empty.
    """
    base = DynamicSettings()
    longer = segment / SEGMENT if is_search or not lr else 1.0
    if convention != "paper" and not (lr and epsilon and decay):
        raise ValueError(f"lr, epsilon and decay must be given with the convention {convention}")
    if rule == "sgd":
        if not lr:
            raise ValueError("lr must be given for the rule sgd")
        if epsilon:
            raise ValueError("epsilon must go with the rule rms: sgd has none")
        if convention != "paper":
            raise ValueError(f"convention must be paper for the rule sgd, got {convention}")
    lrs, decays = (LRS, DECAYS) if is_search else (QUICK_LRS, (base.decay,))
    rates = _values("lr", lr, [value * longer for value in lrs], is_search)
    values = product(
        rates,
        _values("decay", decay, [value * longer for value in decays], is_search),
        _values("epsilon", epsilon, [base.epsilon], is_search),
    )
    shared: dict[str, Any] = {"segment": segment, "rule": rule, "adapt": tuple(adapt) or None}
    found = [
        DynamicSettings(lr=lr, decay=decay, epsilon=epsilon, **shared)
        for lr, decay, epsilon in values
    ]
    if len(rates) == 1 and not is_search:
        return tuple(found)
    # With rate 0 nothing is learned, whatever the others are.
    still = replace(found[0], lr=0.0)
    return (still, *(settings for settings in found if settings.lr > 0))


def cache_grid(
    *,
    window: Sequence[int] = (),
    theta: Sequence[float] = (),
    weight: Sequence[float] = (),
    is_search: bool = True,
) -> tuple[CacheSettings, ...]:
    """All combinations of the given values, or of the default ones, after no cache.

    Args:
        is_search: if not, no more than one value each. If any is given, there is one setting, with
            the default for what is empty; else the default ones are to be tried.
    """
    base = CacheSettings()
    if not is_search and (window or theta or weight):
        settings = CacheSettings(
            window=_values("window", window, [base.window], is_search)[0],
            theta=_values("theta", theta, [base.theta], is_search)[0],
            weight=_values("weight", weight, [base.weight], is_search)[0],
        )
        return (settings,)
    found = [
        CacheSettings(window=window, theta=theta, weight=weight)
        for window, theta, weight in product(window or WINDOWS, theta or THETAS, weight or WEIGHTS)
    ]
    # With weight 0 there is no cache, whatever the others are.
    without = replace(found[0], weight=0.0)
    return (without, *(settings for settings in found if settings.weight > 0))


def _values(
    name: str, given: Sequence[Number], default: Sequence[Number], is_search: bool
) -> Sequence[Number]:
    if not is_search and len(given) > 1:
        raise ValueError(f"{name} must be one value without a search, got {len(given)}")
    return given or default


def widened(best: Settings, tried: Sequence[Settings]) -> list[Settings]:
    """The best settings with a value beyond all that were tried, for each value at an edge.

    None for static evaluation, with which the others mean nothing.
    """
    found: list[Settings] = []
    if 0 in (getattr(best, "lr", None), getattr(best, "weight", None)):
        return found
    for name in WIDENED:
        values = sorted({getattr(one, name) for one in tried if getattr(one, name, 0) > 0})
        if len(values) < 2 or getattr(best, name) not in (values[0], values[-1]):
            continue
        value = getattr(best, name)
        further = type(value)(2 * value if value == values[-1] else value / 2)
        if name == "weight" and further >= 1:
            continue
        found.append(replace(best, **{name: further}))
    return [settings for settings in found if settings not in tried]
