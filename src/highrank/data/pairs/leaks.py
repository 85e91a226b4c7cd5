"""Pairs of a held-out split that stand in the training split, word for word.

DailyDialog has 20.7 % of its test pairs in train: a model that has learned them by heart wins.
"""

from collections.abc import Iterable

from highrank.data.pairs.reading import Pair


def folded(text: str) -> str:
    """The text without differences of case and of the number of spaces."""
    return " ".join(text.lower().split())


def is_seen(pairs: Iterable[Pair], train: Iterable[Pair]) -> list[bool]:
    """Whether each pair, both of its sides, stands in the training split."""
    known = {(folded(source), folded(target)) for source, target in train}
    return [(folded(source), folded(target)) in known for source, target in pairs]
