"""What a comparison has found: variants, differences, the answer. Losses are nats per token."""

from dataclasses import dataclass
from typing import Any

from highrank.analysis.contrasts import Contrast
from highrank.environment import Environment
from highrank.studies.compare.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant, or the control with a cache, in one regime."""

    name: str
    label: str
    embedding_size: int
    num_components: int
    num_seeds: int
    valid_loss: float
    """Mean over seeds, of the best model so far."""
    valid_deviation: float | None
    """Standard deviation over seeds; None with one."""
    test_loss: float
    test_deviation: float | None
    gap: float
    """Valid minus train."""
    tokens: float
    cpu_seconds: float
    valid: Contrast | None
    """Against the control of the same d; None for the control itself, or with one seed."""
    test: Contrast | None
    single: Contrast | None = None
    """Of a mixture, on valid: against the best single softmax of the same d, adaptive or not."""
    single_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """The best control against the best head of a smaller d."""

    embedding_size: int
    label: str
    """Of that head, which may be the control of its d."""
    contrast: Contrast
    """Of the loss on valid, the control's minus the head's; corrected for all pairs."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    name: str
    """"tokens" or "time"."""
    amount: float
    """Tokens, or CPU seconds."""
    seeds: tuple[int, ...]
    """Those in which every variant was measured."""
    rows: tuple[Row, ...]
    degrees: int | None
    """Of freedom, of the error; None with one seed."""
    is_pooled: bool
    error: float | None
    """Noise: the standard deviation of one run's loss around its variant and its seed, on valid."""
    detectable: float | None
    """The difference on valid that would be found in 80 % of comparisons."""
    best: str
    """The lowest loss on valid."""
    best_control: str
    contrast: Contrast | None
    """The best variant that is no control against the best control, corrected for all pairs."""
    smaller: tuple[Smaller, ...] = ()
    """What a larger d alone does, where there are several."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a variant's time is, and whether what it wins pays for it."""

    name: str
    label: str
    ratio: float
    """CPU seconds for each token over the control's."""
    gain: float
    """Nats on valid that it wins at equal tokens."""
    needed: float
    """Nats that would pay for its time, by the control's learning curve."""
    verdict: str
    """"pays", "does not pay", or "cannot tell"."""


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    name: str
    label: str
    description: str
    """What the head is, in a sentence."""
    spec: str
    role: str
    embedding_size: int
    """E."""
    context_size: int
    """D."""
    num_components: int
    hidden_sizes: tuple[int, ...]
    num_parameters: int
    cpu_per_token: float | None
    """Mean over the runs."""
    num_disturbed: int
    num_diverged: int
    num_finished: int
    rank_bound: int | None
    analysis: dict[str, float | None]
    """Means over seeds of ranks and I(component; token)."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    variant: str
    text: str
    """The head, K and d."""
    description: str
    """What that head is."""
    command: str
    """What trains it in full; empty for an exact language, which is no prepared corpus."""
    evidence: str


@dataclass(frozen=True, kw_only=True)
class CompareResult:
    corpus: str
    vocab_size: int
    num_train: int
    floor: float | None
    """Loss of the language itself on test, for an exact language."""
    folder: str
    answer: str
    recommendation: Recommendation | None
    is_complete: bool
    equal: tuple[str, ...]
    variants: tuple[VariantResult, ...]
    regimes: tuple[Regime, ...]
    costs: tuple[Cost, ...]
    runs: tuple[RunRecord, ...]
    plan: dict[str, Any]
    elapsed: float
    """Seconds of this session."""
    environment: Environment
