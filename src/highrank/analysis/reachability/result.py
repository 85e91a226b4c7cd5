"""What is known of each word, with its certificate: plain data.

E embedding size.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor


class Verdict(StrEnum):
    REACHABLE = "reachable"
    """Some state makes it more likely than every other word."""
    TIED = "tied"
    """The same but for words with the same vector and bias, which always lead with it."""
    UNREACHABLE = "unreachable"
    """In every state another word is at least as likely."""
    UNDECIDED = "undecided"
    """Neither certificate passed its check, too close to call in float64; or there was no time."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A hidden state that makes the word the most likely."""

    hidden: Tensor
    """(E,), float64."""
    margin: float
    """The word's logit leads that of every word outside its group by at least this, which is
    positive after all rounding errors were subtracted."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Other words of which the word is a mean: their mean logit is at least its own, so that one
    of theirs always is. No words at all: the word's own bias is −inf."""

    words: Tensor
    """(n,)."""
    weights: Tensor
    """(n,), float64, positive."""
    lead: float
    """In no state does the word lead all others by more than this. At most 0 if the proof is exact.
    Otherwise it is the proof's rounding error: for bounded states, of the logits; for unbounded
    ones, of the logits divided by max(1, ‖hidden‖)."""
    is_exact: bool
    """Whether no rounding error is left: these weights prove it as they are, or it was proved that
    weights which do exist within their rounding errors."""


@dataclass(frozen=True, kw_only=True)
class WordVerdict:
    word: int
    verdict: Verdict
    certificate: State | Proof | None
    """A state if the word is reachable or tied, a proof if not, None if undecided."""
    group: tuple[int, ...]
    """The words with its vector and its bias, itself included."""
    is_untried: bool
    """Whether it is undecided for lack of time."""


@dataclass(frozen=True, kw_only=True)
class Reachability:
    words: tuple[WordVerdict, ...]
    """One for each word, in the order of the vocabulary."""
    num_searched: int
    """Distinct vectors for which the search found a state."""
    num_inside: int
    """Those that lie in a simplex which had proved another one unreachable."""
    num_programmes: int
    """Those that needed a linear programme, the one that ran out of time included."""
    elapsed: float
    """Seconds."""

    def having(self, verdict: Verdict) -> tuple[WordVerdict, ...]:
        return tuple(word for word in self.words if word.verdict is verdict)

    @property
    def num_untried(self) -> int:
        """Words that are undecided for lack of time: 0 if there was no limit."""
        return sum(word.is_untried for word in self.words)

    @property
    def counts(self) -> dict[Verdict, int]:
        counter = Counter(word.verdict for word in self.words)
        return {verdict: counter[verdict] for verdict in Verdict}
