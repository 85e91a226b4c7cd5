"""The options of `highrank evaluate` that belong to a method, and the settings they mean."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.search import CacheGrid, dynamic_grid


def _default(text: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {text})")


@dataclass(frozen=True, kw_only=True)
class DynamicOptions:
    """For --dynamic. With --search, give several values to try all combinations of them."""

    lr: Annotated[tuple[float, ...], _default("5e-5; with --search six from 3e-5 to 1e-4")] = ()
    """η, the learning rate."""
    epsilon: Annotated[tuple[float, ...], _default("2e-5")] = ()
    """ε, added to the gradients' root mean square."""
    decay: Annotated[tuple[float, ...], _default("2e-3; with --search four from 1e-3 to 5e-3")] = ()
    """λ, the pull toward the trained weights."""
    convention: Literal["paper", "original", "ms"] = "paper"
    """Whose lr, epsilon and decay: of Krause et al., or of Yang et al.'s code (ms: with --ms)."""
    segment: int = DynamicSettings.segment
    """Tokens that are scored, then learned from, at once."""
    rule: Literal["rms", "sgd"] = "rms"
    """rms: steps scaled by gradient statistics of the training text. sgd: plain steps."""
    adapt: Annotated[tuple[str, ...], _default("all")] = ()
    """Parameters or modules that learn, such as head or backbone.layers.1."""

    def grid(self, is_search: bool) -> tuple[DynamicSettings, ...]:
        """What to try, in the options' own convention; one setting unless it is a search."""
        given = {"lr": self.lr, "epsilon": self.epsilon, "decay": self.decay}
        missing = [f"dynamic.{name}" for name, values in given.items() if not values]
        if self.convention != "paper" and missing:
            raise ValueError(
                f"{' and '.join(missing)} must be given with --dynamic.convention {self.convention}"
            )
        if self.rule == "sgd":
            if not self.lr:
                raise ValueError("dynamic.lr must be given with --dynamic.rule sgd")
            if self.epsilon:
                raise ValueError("dynamic.epsilon must go with the rule rms: sgd has none")
            if self.convention != "paper":
                raise ValueError(
                    f"dynamic.convention must be paper for the rule sgd, got {self.convention}"
                )
        if not is_search:
            _check_single("dynamic", given)
        base = DynamicSettings(segment=self.segment, rule=self.rule, adapt=self.adapt or None)
        if is_search:
            return dynamic_grid(base, self.lr or None, self.decay or None, self.epsilon or None)
        return dynamic_grid(
            base,
            self.lr or (base.lr,),
            self.decay or (base.decay,),
            self.epsilon or (base.epsilon,),
        )


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """For --cache. With --search, give several values to try all combinations of them."""

    window: Annotated[tuple[int, ...], _default("2000; with --search 100, 500, 2000")] = ()
    """Words that are remembered."""
    flatness: Annotated[tuple[float, ...], _default("0.3; with --search seven from 0 to 1")] = ()
    """θ: 0 counts all remembered words alike, 1 mostly those after similar states."""
    weight: Annotated[tuple[float, ...], _default("0.1; with --search seven from 0 to 0.3")] = ()
    """λ, the share of the cache."""

    def grid(self, is_search: bool) -> CacheGrid:
        """What to try; one setting unless it is a search."""
        if not is_search:
            given = {"window": self.window, "flatness": self.flatness, "weight": self.weight}
            _check_single("cache", given)
        base = CacheSettings()
        default = (
            CacheGrid()
            if is_search
            else CacheGrid(
                windows=(base.window,), flatnesses=(base.flatness,), weights=(base.weight,)
            )
        )
        grid = CacheGrid(
            windows=self.window or default.windows,
            flatnesses=self.flatness or default.flatnesses,
            weights=self.weight or default.weights,
        )
        # The settings check themselves when they are made.
        grid.settings()
        return grid


def _check_single(group: str, given: dict[str, tuple[float, ...]]) -> None:
    for name, values in given.items():
        if len(values) > 1:
            raise ValueError(
                f"{group}.{name} must be one value without --search, got {len(values)}"
            )
