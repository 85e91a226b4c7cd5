"""The findings of a comparison: variants, differences, the answer. Losses are nats per token."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from highrank.analysis.contrasts import Contrast
from highrank.environment import Environment
from highrank.evaluation.check import Finding
from highrank.ngram import TableSize
from highrank.studies.compare.plan import Regime
from highrank.studies.compare.record import RunRecord
from highrank.studies.compare.variant import Role


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant, or the control by another method, in one regime."""

    name: str
    label: str
    network: str
    """Title of the network."""
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
    valid: Contrast | None = None
    """Against the control of the same network and d; None for a control, or with one seed."""
    test: Contrast | None = None
    single: Contrast | None = None
    """For a mixture, on valid: against the best single softmax of the same network and d, adaptive
    or not."""
    single_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """The best control against the best variant of a smaller d."""

    embedding_size: int
    label: str
    """Label of that variant, which may be the control of its d."""
    contrast: Contrast
    """Loss on valid, the control's minus the variant's; corrected for all pairs."""


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """A variant whose seeds differ so much that differences of all others are hard to see."""

    name: str
    """Name of its row."""
    ratio: float
    """Standard deviation over seeds, around the mean of the others, over theirs around it."""
    detectable: float | None
    """`RegimeResult.detectable` without it; None for a control, which cannot be left out."""


@dataclass(frozen=True, kw_only=True)
class RegimeResult:
    name: Regime
    amount: float
    """Tokens, or CPU seconds."""
    seeds: tuple[int, ...]
    """Those in which every variant was measured."""
    rows: tuple[Row, ...]
    degrees: int | None
    """Degrees of freedom of the error; None with one seed."""
    is_pooled: bool
    error: float | None
    """Noise: the standard deviation of one run's loss around its variant and seed, on valid."""
    detectable: float | None
    """The difference on valid that would be found in 80 % of comparisons."""
    best: str
    """Name of the row with the lowest loss on valid."""
    best_control: str
    contrast: Contrast | None
    """The best variant that is no control against the best control, corrected for all pairs."""
    smaller: tuple[Smaller, ...] = ()
    """Contrasts that show what a larger d alone does, where there are several."""
    noisy: Noisy | None = None

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


class Payoff(StrEnum):
    PAYS = "pays"
    DOES_NOT_PAY = "does not pay"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The time that a variant takes, and whether its gain pays for it."""

    name: str
    label: str
    ratio: float
    """CPU seconds for each token over the control's."""
    gain: float
    """Nats on valid that it wins at equal tokens."""
    needed: float
    """Nats that would pay for its time, by the control's learning curve."""
    verdict: Payoff


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    name: str
    label: str
    description: str
    """The head in a sentence."""
    network: str
    """Its title."""
    spec: str
    role: Role
    embedding_size: int
    """E."""
    context_size: int
    """D."""
    num_components: int
    layers: str
    """Sizes of the network's layers."""
    num_parameters: int
    table: TableSize | None = None
    """What n-grams add to the parameters; None without them, or before they are counted."""
    cpu_per_token: float | None
    """Mean over the runs."""
    num_disturbed: int
    num_diverged: int
    num_finished: int
    check: tuple[Finding, ...] | None = None
    """The findings of all its runs, for a head with further components."""
    rank_bound: int | None
    analysis: dict[str, float | None]
    """Means over seeds of ranks and I(component; token)."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    variant: str
    row: str
    """Name of the row that is recommended: the variant, or the control by another method."""
    text: str
    """The head, K and d."""
    description: str
    """The head in a sentence."""
    command: str
    """The command that trains it in full; empty for an exact language, which is not prepared."""
    evidence: str


@dataclass(frozen=True, kw_only=True)
class NGramResult:
    """An n-gram model of the training split, alone."""

    order: int
    table: TableSize
    valid_loss: float
    test_loss: float
    seconds: float
    """Of counting and evaluating."""


@dataclass(frozen=True, kw_only=True)
class CompareResult:
    corpus: str
    vocab_size: int
    num_train: int
    floor: float | None
    """Loss of the language itself on test, for an exact language."""
    ngram: NGramResult | None = None
    """Among the baselines."""
    folder: str
    verdict: str
    """The answer in at most twelve words."""
    answer: str
    recommendation: Recommendation | None
    is_complete: bool
    equal: tuple[str, ...]
    variants: tuple[VariantResult, ...]
    regimes: tuple[RegimeResult, ...]
    costs: tuple[Cost, ...]
    runs: tuple[RunRecord, ...]
    plan: dict[str, Any]
    elapsed: float
    """Seconds of this session."""
    environment: Environment

    @property
    def at_equal_tokens(self) -> RegimeResult | None:
        return next((one for one in self.regimes if one.name is Regime.TOKENS), None)

    @property
    def networks(self) -> tuple[str, ...]:
        """Titles of the networks."""
        return tuple(dict.fromkeys(one.network for one in self.variants))

    @property
    def control(self) -> VariantResult:
        """The control of the first network and d."""
        return next(one for one in self.variants if one.role is Role.CONTROL)
