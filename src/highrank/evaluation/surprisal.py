"""Predictions for each token of a text: probability, surprisal, rank, and the component.

T time, D hidden size, K components, V vocabulary.
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank.data.vocabulary import EOS, Vocabulary
from highrank.evaluation.cache import CacheSettings, History, mix_all
from highrank.evaluation.static import Evaluation, Scored, steps
from highrank.files import write_atomically
from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import MixtureHead, log_responsibility
from highrank.heads.composed import Composed
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout
from highrank.progress import OnProgress

# Numbers in a window's table of log-probabilities: 64 MiB.
TABLE_SIZE = 1 << 24
FORMATS = (".csv", ".jsonl")


class Surprisal(NamedTuple):
    token: str
    """As the text has it."""
    is_known: bool
    """False: outside the vocabulary, so it is read as `<unk>`, and all else here is of `<unk>`."""
    probability: float
    bits: float
    """-log2 of the probability."""
    rank: int
    """1 is the likeliest token."""
    component: int | None
    """The softmax most responsible for the token, from 1; None if the contexts were mixed before
    one softmax (MoC)."""
    weights: tuple[float, ...]
    """Weights of the mixture's components, before the token is known; (1.0,) for one softmax."""
    parts: Mapping[str, float] = MappingProxyType({})
    """Fractions of the model's probability that come from parts beside its softmaxes, by name, such
    as a pointer."""
    cache: float | None = None
    """The fraction of the probability that comes from the cache; None without one."""


@torch.no_grad()
def surprisals(
    model: LanguageModel,
    vocabulary: Vocabulary,
    tokens: Sequence[str],
    window: int | None = None,
    cache: CacheSettings | None = None,
) -> Iterator[Surprisal]:
    """Each token of a text, predicted from all before it; the first from an `<eos>`.

    Args:
        window: tokens in one forward pass; it does not change the numbers.
        cache: of the text's tokens, mixed with the model.
    """
    if vocabulary.eos is None:
        raise ValueError(f"the vocabulary must have {EOS}, which starts the text, got {vocabulary}")
    if not tokens:
        return
    if window is None:
        window = max(1, min(1000, TABLE_SIZE // len(vocabulary)))
    ids, names = vocabulary.encode([EOS, *tokens]), iter(tokens)
    history = None if cache is None else History(cache.window)
    with without_dropout(model):
        state = model.initial_state(1)
        for tokens_in, column in steps(model, ids, window):
            hidden, past, state, out = model.read(tokens_in, state)
            target = column[:, 0]  # (T,)
            log_prob = model.head.log_prob(hidden, **past)[:, 0]  # (T, V)
            weights, components = _mixture(model.head, hidden[:, 0], target)
            parts = _parts(model.head, hidden, column, past)
            fractions: list[float | None] = [None] * len(target)
            if history is not None and cache is not None:
                segment = Scored(target, _target_log_prob(log_prob, target), out.hidden[:, 0])
                log_prob, fraction = _with_cache(log_prob, segment, history, cache)
                fractions = fraction.tolist()
            log_p = _target_log_prob(log_prob, target)
            rank = 1 + (log_prob > log_p[:, None]).sum(-1)  # (T,)
            ranks, columns = rank.tolist(), (components, weights.tolist(), parts, fractions)
            window_tokens = islice(names, len(target))
            for token, value, at, component, weight, *rest in zip(
                window_tokens, log_p.tolist(), ranks, *columns, strict=True
            ):
                probability, bits = math.exp(value), abs(value) / math.log(2)
                is_known = token in vocabulary
                yield Surprisal(
                    token, is_known, probability, bits, at, component, tuple(weight), *rest
                )


def _parts(
    head: Head, hidden: Tensor, target: Tensor, past: dict[str, Any]
) -> list[dict[str, float]]:
    """Fractions of the probability of each target (T, 1) that lie beside the softmaxes."""
    if not isinstance(head, Composed):
        return [{}] * len(target)
    found = head.shares(hidden, target, **past)[:, 0, 1:].tolist()
    return [dict(zip(head.beside, row, strict=True)) for row in found]


def _target_log_prob(log_prob: Tensor, target: Tensor) -> Tensor:
    return log_prob.gather(-1, target[:, None])[:, 0]  # (T,)


def _with_cache(
    log_prob: Tensor, segment: Scored, history: History, settings: CacheSettings
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of model and cache (T, V); of each target, the cache's fraction (T,)."""
    log_prob = mix_all(log_prob, segment, history, settings)  # (T, V)
    of_model = (
        segment.log_prob + math.log1p(-settings.weight) - _target_log_prob(log_prob, segment.target)
    )
    return log_prob, torch.expm1(of_model).clamp(max=0).abs()


def _mixture(head: Head, hidden: Tensor, target: Tensor) -> tuple[Tensor, list[int | None]]:
    """The weights of the components (T, K), and the most responsible one from 1 on, T of them.

    A head that is no mixture has no weights; one that mixes before the softmax, no responsibility.
    """
    none: list[int | None] = [None] * len(hidden)
    if not isinstance(head, MixtureHead):
        return hidden.new_zeros(len(hidden), 0), none
    weights = head.mixture(hidden).log_weight.exp()  # (T, K)
    responsibility = log_responsibility(head, hidden, target)  # (T, K), or (T, 1) if MoC
    is_mixed_before = responsibility.shape != weights.shape
    return weights, none if is_mixed_before else (responsibility.argmax(-1) + 1).tolist()


def evaluate_lines(
    model: LanguageModel,
    vocabulary: Vocabulary,
    lines: Sequence[Sequence[str]],
    *,
    independent: bool = False,
    cache: CacheSettings | None = None,
    out: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Static evaluation of a text, token by token, or with a cache.

    Args:
        lines: the tokens of each line, with `<eos>` as the last.
        independent: whether each line starts without a past, and without a cache's.
        out: a .csv or .jsonl that gets a row for each token.
    """
    texts = lines if independent else [list(chain.from_iterable(lines))]
    found = chain.from_iterable(
        surprisals(model, vocabulary, tokens, cache=cache) for tokens in texts
    )
    places = [
        {"line": line, "position": position}
        for line, tokens in enumerate(lines, 1)
        for position, _ in enumerate(tokens, 1)
    ]
    num_tokens, bits = len(places), 0.0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal bits
        for index, (place, surprisal) in enumerate(zip(places, found, strict=True), 1):
            bits += surprisal.bits
            if on_progress is not None:
                on_progress(index / num_tokens, "token by token")
            yield place | _row(surprisal)

    if out is None:
        for _ in rows():
            pass
    else:
        write_atomically(out, lambda new: _write(new, rows(), out.suffix))
    return Evaluation(bits * math.log(2) / num_tokens, num_tokens)


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ValueError(f"the tokens' file must end in {' or '.join(FORMATS)}, got {path}")


def _write(path: Path, rows: Iterator[dict[str, Any]], suffix: str) -> None:
    """Write the rows as they come; `suffix` is one of `FORMATS`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if suffix == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        writer = csv.writer(file)
        for index, row in enumerate(rows):
            weights = row.pop("weights")
            if index == 0:
                writer.writerow([*row, *(f"weight_{k + 1}" for k in range(len(weights)))])
            writer.writerow([*row.values(), *weights])


def _row(found: Surprisal) -> dict[str, Any]:
    cache = {} if found.cache is None else {"cache": _rounded(found.cache)}
    return {
        "token": found.token,
        "known": int(found.is_known),
        "probability": _rounded(found.probability),
        "surprisal_bits": _rounded(found.bits),
        "rank": found.rank,
        "component": found.component,
        **{name: _rounded(value) for name, value in found.parts.items()},
        **cache,
        "weights": [_rounded(weight) for weight in found.weights],
    }


def _rounded(value: float) -> float:
    """To nine digits, which tell all float32 apart."""
    return float(f"{value:.9g}")
