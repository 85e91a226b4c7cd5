"""Scores of responses: smoothed sentence BLEU as precision and recall, and distinct n-grams.

Several hypotheses of a response are scored against the one that was given (Zhao et al. 2017, as
Yang et al. 2018 have it): precision is the mean of their BLEU, recall the best of them. A sentence
often has no 4-gram of its reference, so that counts are smoothed: by one, from the 2-grams on (Lin
and Och 2004). Published numbers are by method 7 of nltk, which has changed since and gives more:
they are not comparable with these.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

ORDERS = (1, 2, 3, 4)
SMOOTHING = "add-one from 2-grams on (Lin and Och 2004)"
WORD = re.compile(r"\w+|[^\w\s]+")


def words(text: str) -> list[str]:
    """Words and runs of signs, lower-cased: as WordPunctTokenizer of nltk splits them."""
    return WORD.findall(text.lower())


def sentence_bleu(hypothesis: Sequence[str], reference: Sequence[str], order: int = 4) -> float:
    """BLEU of one sentence, between 0 and 1.

        min(1, exp(1 - R / H)) · (p_1 … p_m)^(1 / m),   p_n = (matches_n + 1) / (count_n + 1), n > 1

    for H and R words of hypothesis and reference, m the order. Without a common word it is 0.
    """
    log_sum = 0.0
    for n in range(1, order + 1):
        found, known = _ngrams(hypothesis, n), _ngrams(reference, n)
        matches, added = (found & known).total(), int(n > 1)
        if matches + added == 0:
            return 0.0
        log_sum += math.log((matches + added) / (found.total() + added))
    return math.exp(log_sum / order + min(0.0, 1 - len(reference) / len(hypothesis)))


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def distinct(texts: Iterable[Sequence[str]], n: int) -> float:
    """Distinct n-grams of all texts over their number (Li et al. 2016); 0 if there are none."""
    total: Counter[tuple[str, ...]] = Counter()
    for tokens in texts:
        total += _ngrams(tokens, n)
    return len(total) / total.total() if total else 0.0


@dataclass(frozen=True, kw_only=True)
class DialogueScore:
    precision: tuple[float, ...]
    """Mean BLEU-1 … 4 of all hypotheses, between 0 and 1."""
    recall: tuple[float, ...]
    """Mean BLEU-1 … 4 of the best hypothesis of each response."""
    distinct: tuple[float, ...]
    """distinct-1 and -2 of the first hypotheses."""
    reference_distinct: tuple[float, ...]
    """The same of the references."""
    num_responses: int
    smoothing: str = SMOOTHING


def dialogue_score(hypotheses: Sequence[Sequence[str]], references: Sequence[str]) -> DialogueScore:
    """Scores of several hypotheses for each reference, the likeliest first."""
    if len(hypotheses) != len(references) or not references:
        found = f"{len(hypotheses)} and {len(references)}"
        raise ValueError(f"hypotheses and references must be as many, one at least, got {found}")
    texts, known = [list(map(words, some)) for some in hypotheses], list(map(words, references))
    scores = [
        [[sentence_bleu(one, reference, n) for one in some] or [0.0] for n in ORDERS]
        for some, reference in zip(texts, known, strict=True)
    ]
    first = [some[0] if some else [] for some in texts]
    return DialogueScore(
        precision=tuple(fmean(fmean(of[i]) for of in scores) for i in range(len(ORDERS))),
        recall=tuple(fmean(max(of[i]) for of in scores) for i in range(len(ORDERS))),
        distinct=tuple(distinct(first, n) for n in (1, 2)),
        reference_distinct=tuple(distinct(known, n) for n in (1, 2)),
        num_responses=len(references),
    )
