"""What is known of each word, with its certificate: plain data.

E embedding size.

How long deciding words may take.

Words of one vector: only those with its largest bias can lead, and they lead together.
"""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from time import monotonic

import torch
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


class OutOfTime(Exception):
    """A word is given up because the time is up, not because it was too close to call."""


class Deadline:
    """So many seconds from now, or never."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, got {seconds}")
        self._end = math.inf if seconds is None else monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """inf if there is no limit."""
        return self._end - monotonic()

    @property
    def has_passed(self) -> bool:
        return self.seconds_left <= 0


NEVER = Deadline()


@dataclass(frozen=True, kw_only=True)
class Distinct:
    leaders: Tensor
    """For each vector that a possible word has, the first word with its largest bias."""
    position: list[int]
    """For each word, where its vector's leader stands; −1 if the word's own bias is −inf."""


def distinct_words(weight: Tensor, bias: Tensor) -> Distinct:
    """The words grouped by their vectors."""
    # Zero has two signs but is one number.
    rows, biases = (weight + 0.0).numpy(), bias.tolist()
    known: dict[bytes, int] = {}
    leaders: list[int] = []
    position = [-1] * len(biases)
    for word in bias.isfinite().nonzero()[:, 0].tolist():
        position[word] = known.setdefault(rows[word].tobytes(), len(leaders))
        if position[word] == len(leaders):
            leaders.append(word)
        elif biases[word] > biases[leaders[position[word]]]:
            leaders[position[word]] = word
    return Distinct(leaders=torch.tensor(leaders), position=position)


def word_verdicts(
    bias: Tensor,
    distinct: Distinct,
    certificates: list[State | Proof | None],
    untried: Collection[int] = (),
) -> tuple[WordVerdict, ...]:
    """What the certificates of the leaders say of all words.

    Args:
        untried: positions of the leaders for which there was no time.
    """
    leaders, biases = distinct.leaders.tolist(), bias.tolist()
    keys = list(zip(distinct.position, biases, strict=True))
    members: dict[tuple[int, float], list[int]] = {}
    for word, key in enumerate(keys):
        members.setdefault(key, []).append(word)
    groups = {key: tuple(words) for key, words in members.items()}

    def certificate(position: int, own: float) -> State | Proof | None:
        if position < 0:
            return _proof([], -math.inf)
        leader = leaders[position]
        if own < biases[leader]:
            return _proof([leader], math.nextafter(own - biases[leader], 0.0))
        found = certificates[position]
        # The programmes count the leaders only.
        return (
            replace(found, words=distinct.leaders[found.words])
            if isinstance(found, Proof)
            else found
        )

    return tuple(
        _word_verdict(word, certificate(*key), groups[key], key[0] in untried)
        for word, key in enumerate(keys)
    )


def _word_verdict(
    word: int, certificate: State | Proof | None, group: tuple[int, ...], is_untried: bool
) -> WordVerdict:
    if certificate is None:
        verdict = Verdict.UNDECIDED
    elif isinstance(certificate, Proof):
        verdict = Verdict.UNREACHABLE
    else:
        verdict = Verdict.REACHABLE if len(group) == 1 else Verdict.TIED
    return WordVerdict(
        word=word,
        verdict=verdict,
        certificate=certificate,
        group=group,
        is_untried=is_untried and certificate is None,
    )


def _proof(words: list[int], lead: float) -> Proof:
    """By a word of the same vector and a larger bias, or by the word's own bias of −inf."""
    index = torch.tensor(words, dtype=torch.long)
    weights = torch.ones(len(words), dtype=torch.float64)
    return Proof(words=index, weights=weights, lead=lead, is_exact=True)
