"""Words of one vector: only those with its largest bias can lead, and they lead together."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from highrank.analysis.reachability.result import Proof, State, Verdict, WordVerdict


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
