"""Whether scores are those of a distribution, and honest: for any function that scores tokens.

    score(tokens): (B, L) to (B, L - 1), log p of each token but the first, given those before it

Nothing is asked of its inside. If the scores of all tokens that may come next sum to one, whatever
comes before, no score depends on its own token in any other way than a probability does. B pieces
of a text, L tokens of each, M of the text, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.evaluation.cache import CacheSettings, History, mix_all
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.search import Method
from highrank.evaluation.static import Scored
from highrank.evaluation.temperature import distributions
from highrank.heads.composed import Composed
from highrank.models.language_model import LanguageModel
from highrank.predictor import LanguageModelPredictor, Predictor

Score = Callable[[Tensor], Any]
"""Takes token ids (B, L), int64; returns numbers."""

NUM_PIECES, LENGTH, SHORTEST = 4, 48, 4
# Tokens before those whose probabilities are summed, at most.
CONTEXT = 16
# How often later tokens are changed.
NUM_CUTS, NUM_CUTS_ADAPTIVE = 8, 3
# Rows that are scored at once.
ROWS = 512
# Of a quick check: contexts, tokens that are scored after each, changes of later tokens.
QUICK_CONTEXTS, QUICK_TOKENS, QUICK_CUTS = 2, 24, 2
WINDOWS = (1, 7)
# A difference of this many nats is 0.01 % of a perplexity: more than float32 rounds.
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One property, and by how much it was missed."""

    name: str
    passed: bool
    found: float
    """The largest deviation, in nats; of a sum of probabilities, from 1."""
    limit: float
    """Largest deviation that passes."""
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Scorers:
    """Ways to score the same text by one model."""

    score: Score
    distribution: Score | None = None
    """log p of every token (B, V) after the tokens (B, L); if None, all are scored one by one."""
    same: Mapping[str, Score] = field(default_factory=dict)
    """Other ways to compute the same scores, by what they do."""
    adaptive: Mapping[str, Score] = field(default_factory=dict)
    """Ways that learn from the text as they read it, by name."""


def check(
    score: Score | Scorers,
    tokens: Sequence[int] | NDArray[np.integer[Any]],
    vocab_size: int,
    *,
    num_contexts: int = NUM_PIECES,
    length: int = LENGTH,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> tuple[Finding, ...]:
    """Whether scores sum to one, and depend on nothing but the tokens before.

    Args:
        score: takes token ids (B, L) and returns the log-probability of each but the first,
            (B, L - 1), in nats.
        tokens: (M,), a text; the pieces that are scored are spread evenly over it.
        vocab_size: V.
        num_contexts: after how many contexts the probabilities of all tokens are summed.
        length: L, at most.
        tolerance: largest deviation of a score, and of a sum from 1, that passes.
        seed: of the tokens that are changed.
    """
    scorers = score if isinstance(score, Scorers) else Scorers(score=score)
    if (length := min(length, len(tokens))) < SHORTEST:
        raise ValueError(f"a piece of the text must have at least {SHORTEST} tokens, got {length}")
    if num_contexts < 1:
        raise ValueError(f"num_contexts must be at least 1, got {num_contexts}")
    generator = torch.Generator().manual_seed(seed)
    examined = _Examination(scorers, _pieces(tokens, length), vocab_size, tolerance, generator)
    return tuple(examined.findings(num_contexts))


def quick_check(
    model: LanguageModel, tokens: NDArray[np.integer[Any]], method: Method | None = None
) -> tuple[Finding, ...] | None:
    """Whether scores sum to one and depend on earlier tokens only, in about a second.

    Those of dynamic evaluation need only be scored before they are learned, by a model whose own
    are examined like all others. None for a head without further components that is evaluated
    statically, which is a distribution by its form, and for a text that is too short.

    Args:
        model: in evaluation mode.
        tokens: (M,), a text.
        method: how it is scored; statically if None.
    """
    method = Method() if method is None else method
    fixed, found = replace(method, dynamic=None), list[Finding]()
    if len(tokens) < SHORTEST:
        return None
    scorers = _scorers_by(fixed, model)
    if method.dynamic is not None:
        scorers = replace(scorers, adaptive={method.name: _row_by_row(model, method)})
    pieces = _pieces(tokens, min(LENGTH, len(tokens)))
    generator = torch.Generator().manual_seed(0)
    examined = _Examination(scorers, pieces, model.head.vocab_size, TOLERANCE, generator)
    if isinstance(model.head, Composed) or not fixed.is_static:
        found += examined.quick_findings()
    return tuple(found + examined.adaptive_findings(QUICK_CUTS)) or None


def check_word(findings: Sequence[Finding] | None) -> str:
    """The outcome of a check in a word or two; empty if there was none."""
    if findings is None:
        return ""
    failed = [finding.name for finding in findings if not finding.passed]
    return f"FAILS {', '.join(failed)}" if failed else "checked"


def _pieces(tokens: Sequence[int] | NDArray[np.integer[Any]], length: int) -> Tensor:
    """(B, L), evenly spread."""
    starts = np.linspace(0, len(tokens) - length, NUM_PIECES).astype(np.int64)
    rows = [np.asarray(tokens[start : start + length], dtype=np.int64) for start in starts]
    return torch.from_numpy(np.stack(rows))


class _Examination:
    def __init__(
        self,
        scorers: Scorers,
        pieces: Tensor,
        vocab_size: int,
        tolerance: float,
        generator: torch.Generator,
    ) -> None:
        self.scorers, self.pieces, self.V = scorers, pieces, vocab_size
        self.tolerance, self.generator = tolerance, generator

    def findings(self, num_contexts: int) -> list[Finding]:
        pieces, score = self.pieces, self._scored(self.scorers.score)
        want = score(pieces)  # (B, L - 1)
        contexts = self._contexts(num_contexts)
        found = [self._sum(contexts)]
        if self.scorers.distribution is not None:
            found.append(self._target(contexts, score))
        found += [self._causal(score), self._length(score, want), self._batch(score, want)]
        for name, other in self.scorers.same.items():
            worst = _distance(self._scored(other)(pieces), want)
            found.append(self._finding("window", worst, f"{name} changes scores by"))
        found += self.adaptive_findings(NUM_CUTS_ADAPTIVE)
        # Last: what has learned from any call before gives other scores now.
        worst = _distance(score(pieces), want)
        found.append(self._finding("repeatable", worst, "Scoring again changes scores by"))
        return found

    def adaptive_findings(self, num_cuts: int) -> list[Finding]:
        """Whether ways that learn score before; on one piece, as learning takes long."""
        found = []
        for name, other in self.scorers.adaptive.items():
            worst = self._from_later(self._scored(other), self.pieces[:1], num_cuts)
            text = f"Later tokens change earlier scores, with {name}, by"
            found.append(self._finding("scored before learned", worst, text))
        return found

    def _finding(self, name: str, worst: float, text: str, unit: str = " nats") -> Finding:
        passed = worst <= self.tolerance
        return Finding(
            name=name,
            passed=passed,
            found=worst,
            limit=self.tolerance,
            sentence=f"{text} at most {worst:.2g}{unit}{'' if passed else ', which is too much'}.",
        )

    def _sum(self, contexts: Sequence[Tensor]) -> Finding:
        totals = [self._all(context).exp().sum().item() for context in contexts]
        worst = max((abs(total - 1) for total in totals), key=_or_infinity)
        text = (
            f"The probabilities of all {self.V:,} tokens sum to {min(totals):.6g} … "
            f"{max(totals):.6g} after {len(contexts)} contexts, off 1 by"
        )
        return self._finding("sum", _or_infinity(worst), text, unit="")

    def _all(self, context: Tensor) -> Tensor:
        """log p of every token (V,) after a context (n,)."""
        if self.scorers.distribution is not None:
            return _as_tensor(self.scorers.distribution(context[None])).reshape(self.V)
        return self._last(self._scored(self.scorers.score), context, torch.arange(self.V))

    def _last(self, score: Callable[[Tensor], Tensor], context: Tensor, ids: Tensor) -> Tensor:
        """The scores (m,) of each of the ids (m,) after a context (n,)."""
        parts = [
            score(torch.cat((context.expand(len(part), -1), part[:, None]), 1))[:, -1]
            for part in ids.split(ROWS)
        ]
        return torch.cat(parts)

    def quick_findings(self) -> tuple[Finding, ...]:
        """Sum, target and causality, on little of the text."""
        score, contexts = self._scored(self.scorers.score), self._contexts(QUICK_CONTEXTS)
        return (
            self._sum(contexts),
            self._target(contexts, score, QUICK_TOKENS),
            self._causal(score, QUICK_CUTS),
        )

    def _contexts(self, number: int) -> list[Tensor]:
        pieces = self.pieces
        return [
            pieces[i % len(pieces), : self._random(1, min(CONTEXT, pieces.shape[1] - 1))]
            for i in range(number)
        ]

    def _target(
        self,
        contexts: Sequence[Tensor],
        score: Callable[[Tensor], Tensor],
        num_tokens: int = ROWS,
    ) -> Finding:
        worst = 0.0
        for i, context in enumerate(contexts):
            follows = self.pieces[i % len(self.pieces), len(context)]
            ids = torch.cat((follows[None], self._random_tokens((num_tokens,))))
            wanted = self._all(context)[ids]
            worst = max(worst, _distance(self._last(score, context, ids), wanted))
        return self._finding(
            "target", worst, "Scores differ from the distribution computed without the target by"
        )

    def _causal(self, score: Callable[[Tensor], Tensor], num_cuts: int = NUM_CUTS) -> Finding:
        worst = self._from_later(score, self.pieces, num_cuts)
        return self._finding("causal", worst, "Later tokens change earlier scores by")

    def _from_later(
        self, score: Callable[[Tensor], Tensor], pieces: Tensor, num_cuts: int
    ) -> float:
        """By how much scores change when all tokens from a position on are others."""
        want, worst = score(pieces), 0.0
        for _ in range(num_cuts):
            cut = self._random(2, pieces.shape[1] - 1)
            other = pieces.clone()
            # Never the same token again.
            shift = self._random_tokens(other[:, cut:].shape, self.V - 1) + 1
            other[:, cut:] = (other[:, cut:] + shift) % self.V
            worst = max(worst, _distance(score(other)[:, : cut - 1], want[:, : cut - 1]))
        return worst

    def _length(self, score: Callable[[Tensor], Tensor], want: Tensor) -> Finding:
        cut = self._random(2, self.pieces.shape[1] - 1)
        worst = _distance(score(self.pieces[:, :cut]), want[:, : cut - 1])
        return self._finding("length", worst, "The text's end changes scores before it by")

    def _batch(self, score: Callable[[Tensor], Tensor], want: Tensor) -> Finding:
        alone = torch.cat([score(row[None]) for row in self.pieces])
        turned = score(self.pieces.flip(0)).flip(0)
        worst = max(_distance(alone, want), _distance(turned, want))
        return self._finding("batch", worst, "Other texts of the batch change scores by")

    def _scored(self, score: Score) -> Callable[[Tensor], Tensor]:
        def scored(tokens: Tensor) -> Tensor:
            found = _as_tensor(score(tokens))
            wanted = (len(tokens), tokens.shape[1] - 1)
            if found.shape != wanted:
                raise ValueError(f"score must return {wanted} numbers, got {tuple(found.shape)}")
            return found

        return scored

    def _random(self, low: int, high: int) -> int:
        """A number from low to high."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def _random_tokens(self, shape: Sequence[int], size: int | None = None) -> Tensor:
        return torch.randint(size or self.V, tuple(shape), generator=self.generator)


def _as_tensor(numbers: Any) -> Tensor:
    return torch.as_tensor(numbers).detach().to("cpu", torch.float64)


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference; infinite where one is NaN."""
    # Two impossible tokens agree.
    difference = (one - other).abs().masked_fill(one == other, 0.0)
    return _or_infinity(difference.max().item()) if difference.numel() else 0.0


def _or_infinity(number: float) -> float:
    return math.inf if math.isnan(number) else number


def scorers_of(predictor: Predictor, model: LanguageModel | None = None) -> Scorers:
    """The ways in which a predictor scores a text.

    Args:
        model: of a run, which can be evaluated dynamically and with a cache as well.
    """

    def in_windows(window: int) -> Score:
        return lambda tokens: _score(predictor, tokens.T, window).T

    methods = {
        "dynamic evaluation": Method(dynamic=DynamicSettings(rule="sgd", lr=0.1, decay=0.0)),
        "a cache": Method(cache=CacheSettings()),
    }
    adaptive = {}
    if model is not None:
        adaptive = {name: _row_by_row(model, method) for name, method in methods.items()}
    return Scorers(
        score=in_windows(LENGTH),
        distribution=lambda tokens: _distribution(predictor, tokens.T),
        same={f"Reading in windows of {size}": in_windows(size) for size in WINDOWS},
        adaptive=adaptive,
    )


@torch.no_grad()
def _score(predictor: Predictor, tokens: Tensor, window: int) -> Tensor:
    """log p (L - 1, B) of tokens (L, B), read in windows."""
    state, found = predictor.initial_state(tokens.shape[1]), []
    for start in range(0, len(tokens) - 1, window):
        read = tokens[:-1][start : start + window]
        target = tokens[start + 1 : start + 1 + len(read)]
        hidden, past, state = predictor.read(read, state)
        target = target.to(hidden.device)
        found.append(predictor.head(hidden, target, reduction="none", **past).output)
    return torch.cat(found)


@torch.no_grad()
def _distribution(predictor: Predictor, tokens: Tensor) -> Tensor:
    """log p (B, V) of every token after tokens (L, B)."""
    state = predictor.initial_state(tokens.shape[1])
    if len(tokens) > 1:
        state = predictor.read(tokens[:-1], state)[2]
    hidden, past, _ = predictor.read(tokens[-1:], state)
    return predictor.head.log_prob(hidden, **past)[0]


def _scorers_by(method: Method, model: LanguageModel) -> Scorers:
    """A model's own scores, with a cache or at a temperature if the method has one."""
    if method.is_static:
        return scorers_of(LanguageModelPredictor(model))

    def distribution(tokens: Tensor) -> Tensor:
        return torch.stack([_next_token(method, model, row) for row in tokens])

    return Scorers(score=_row_by_row(model, method), distribution=distribution)


def _next_token(method: Method, model: LanguageModel, context: Tensor) -> Tensor:
    """log p (V,) of every token after a context (n,), which is short."""
    # Some token has to follow, and must not matter.
    tokens = torch.nn.functional.pad(context, (0, 1)).numpy()
    ((log_p, target, hidden),) = distributions(model, tokens)
    if method.temperature is not None:
        return (log_p[-1] / method.temperature.temperature).log_softmax(-1)
    assert method.cache is not None
    segment = Scored(target, log_p.gather(-1, target[:, None])[:, 0], hidden)
    return mix_all(log_p, segment, History(method.cache.window), method.cache)[-1]


def _row_by_row(model: LanguageModel, method: Method) -> Score:
    def score(tokens: Tensor) -> Tensor:
        rows = [[s.log_prob for s in method.score(model, row.numpy())] for row in tokens]
        return torch.stack([torch.cat(row) for row in rows])

    return score
