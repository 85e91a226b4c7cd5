"""Who wins the demo: read from the numbers, so that the words stay true when the numbers change."""

from collections.abc import Iterable

from highrank.report.formats import listed
from highrank.report.theme import HEAD_NAMES
from highrank.studies.demo.measure import DemoResult, Fit, LanguageResult

# Fits this close to the lowest excess are level with it.
RELATIVE = 0.01
ABSOLUTE = 1e-5
LEVEL = "Heads that differ by less than 1 % or 0.00001 nats are level."

Groups = dict[int, list[Fit]]
"""What is compared with each other, under the d of the mixtures in it."""


def equal_sizes(language: LanguageResult) -> Groups:
    """All heads of one d."""
    return _grouped((fit.context_size, fit) for fit in language.fits if fit.matches is None)


def equal_parameters(language: LanguageResult) -> Groups:
    """The mixtures of one d, and the softmax that was made as large as they are."""
    matched = {fit.matches for fit in language.fits if fit.matches is not None}
    mixtures = (fit for fit in language.fits if fit.num_components > 1)
    groups = _grouped((fit.context_size, fit) for fit in mixtures if fit.context_size in matched)
    for fit in language.fits:
        if fit.matches in groups:
            groups[fit.matches].insert(0, fit)
    return groups


def leaders(fits: Iterable[Fit]) -> list[Fit]:
    """The fit with the lowest excess, and those level with it."""
    fits = list(fits)
    limit = min(fit.excess for fit in fits) * (1 + RELATIVE) + ABSOLUTE
    return [fit for fit in fits if fit.excess <= limit]


def leader_names(fits: Iterable[Fit]) -> str:
    return listed(list(dict.fromkeys(HEAD_NAMES[fit.head] for fit in leaders(fits))))


def verdict(groups: Groups, where: str = "at d") -> str:
    """Such as "MoS has the lowest excess at d = 8 and 16; Softmax has the lowest excess at d = 63."

    Args:
        where: what stands before "= 8 and 16".
    """
    sizes: dict[str, list[int]] = {}
    for size, fits in groups.items():
        sizes.setdefault(leader_names(fits), []).append(size)
    clauses = []
    for names, some in sizes.items():
        verb = "share" if " and " in names else "has"
        place = "at every size" if some == list(groups) else f"{where} = {listed(some)}"
        clauses.append(f"{names} {verb} the lowest excess {place}")
    return "; ".join(clauses) + "."


def shown_size(result: DemoResult) -> int:
    """The d at which heads are looked at closely: nearest to a quarter of the smallest rank."""
    quarter = min(language.rank for language in result.languages) / 4
    sizes = set.intersection(*(set(equal_sizes(language)) for language in result.languages))
    return min(sorted(sizes), key=lambda size: abs(size - quarter))


def _grouped(pairs: Iterable[tuple[int, Fit]]) -> Groups:
    heads = list(HEAD_NAMES)
    groups: Groups = {}
    for size, fit in sorted(pairs, key=lambda pair: (pair[0], heads.index(pair[1].head))):
        groups.setdefault(size, []).append(fit)
    return groups
