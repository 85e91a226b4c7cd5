"""Targets of an encoder–decoder for many sources: beams in batches of like lengths.

Beam search is that of transformers. A hypothesis is ranked by its log-probability over its length,
its end included, to the power of the length penalty.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from highrank.data.pairs.encoded import Ragged, cut_by_tokens
from highrank.integrations.huggingface.pairs.encoding import TextEncoder
from highrank.progress import OnProgress, silent

# Places (sequences · beams · source tokens) of a batch.
BATCH_TOKENS = 12_000
# Sources of 1 to 16 tokens may have as long targets as each other, those of 17 to 32, and so on.
STEP = 16


@dataclass(frozen=True, kw_only=True)
class Beams:
    """How targets are searched."""

    num_beams: int = 5
    """Hypotheses that are kept at each step; 1 is greedy."""
    num_best: int = 1
    """Hypotheses of each source, the best first."""
    length_penalty: float = 1.0
    """Power of the length by which log-probabilities are divided; 0 is no penalty."""
    max_words: int | None = None
    """Words of a target, at most; None for no limit but twice the source's tokens, rounded up."""
    temperature: float = 0.0
    """0 searches; above it, each hypothesis is drawn from the tempered distribution."""

    def __post_init__(self) -> None:
        for name, value in (("beam", self.num_beams), ("best", self.num_best)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.num_best > self.num_beams:
            found = f"{self.num_best} of {self.num_beams}"
            raise ValueError(f"best must be at most the beams, got {found}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and at least 0, got {self.temperature}")
        if self.max_words is not None and self.max_words < 1:
            raise ValueError(f"max-words must be at least 1, got {self.max_words}")


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    text: str
    ids: tuple[int, ...]
    """Token ids, the end-of-text token included."""
    log_prob: float | None = None
    """Log-probability of all tokens, in nats, but of a language that is forced; None unless it was
    asked for."""


@torch.no_grad()
def decode(
    model: Any,
    encoder: TextEncoder,
    sources: Sequence[str],
    beams: Beams,
    *,
    with_scores: bool = False,
    on_progress: OnProgress = silent,
    check: Callable[[], None] = lambda: None,
) -> list[list[Hypothesis]]:
    """The best targets of each source, in the order of the sources.

    Args:
        model: an encoder–decoder of transformers, plain or upgraded, in evaluation mode.
        with_scores: whether each hypothesis is read once more, for its log-probability.
        check: called between batches, where the work may end.
    """
    if not sources:
        return []
    encoded = Ragged.of(encoder.sources(sources).ids)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    done = 0
    for rows in _batches(encoded, max(1, BATCH_TOKENS // beams.num_beams)):
        check()
        on_progress(done / len(sources), f"{done:,} of {len(sources):,}")
        pad = encoder.tokenizer.pad_token_id
        inputs = _inputs(encoded, rows.tolist(), pad, model.device)
        targets = _search(model, inputs, beams, encoder.limit)  # (rows * best, T)
        scores = _log_probs(model, inputs, targets, beams.num_best) if with_scores else None
        for place, target in enumerate(targets.tolist()):
            score = None if scores is None else scores[place]
            one = _hypothesis(model, encoder.tokenizer, target, beams, score)
            found[rows[place // beams.num_best]].append(one)
        done += len(rows)
    return found


def _batches(encoded: Ragged, batch_tokens: int) -> list[NDArray[np.int64]]:
    """Rows by length, the longest first, so that all of a batch have the same longest target."""
    order = np.argsort(encoded.lengths, kind="stable")[::-1]
    steps = -(-encoded.lengths[order] // STEP)
    groups = np.split(order, np.flatnonzero(np.diff(steps)) + 1)
    return [
        rows for group in groups for rows in cut_by_tokens(group, encoded.lengths, batch_tokens)
    ]


def _inputs(encoded: Ragged, rows: list[int], pad: int, device: Any) -> dict[str, Tensor]:
    lengths = torch.from_numpy(encoded.lengths[rows])
    tokens = encoded.columns(rows, pad).T
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    return {"input_ids": tokens.to(device), "attention_mask": mask.to(device)}


def _search(model: Any, inputs: dict[str, Tensor], beams: Beams, limit: int) -> Tensor:
    # By the source's step and not its batch, which must not change what is found.
    length = 2 * STEP * -(-inputs["input_ids"].shape[1] // STEP)
    if beams.max_words is not None:
        length = 2 * beams.max_words
    options: dict[str, Any] = {
        "num_beams": beams.num_beams,
        "length_penalty": beams.length_penalty,
        "early_stopping": False,
        "do_sample": False,
    }
    if beams.temperature > 0:
        options = {"do_sample": True, "temperature": beams.temperature, "top_k": 0, "num_beams": 1}
    targets: Tensor = model.generate(
        **inputs,
        **options,
        num_return_sequences=beams.num_best,
        max_length=None,
        max_new_tokens=min(length, limit - 1),
    )
    return targets[:, 1:]


def _hypothesis(
    model: Any, tokenizer: Any, target: list[int], beams: Beams, score: float | None
) -> Hypothesis:
    if tokenizer.eos_token_id in target:
        target = target[: target.index(tokenizer.eos_token_id) + 1]
    # The forced language is not special to all tokenizers.
    written = target[_num_forced(model) :]
    text = tokenizer.decode(written, skip_special_tokens=True).strip()
    if beams.max_words is not None:
        text = " ".join(text.split()[: beams.max_words])
    return Hypothesis(text=text, ids=tuple(target), log_prob=score)


def _log_probs(
    model: Any, inputs: dict[str, Tensor], targets: Tensor, num_best: int
) -> list[float]:
    """Log-probability of each target, up to its end, but of what is forced."""
    config = model.generation_config
    start = targets.new_full((len(targets), 1), config.decoder_start_token_id)
    inputs = {name: tensor.repeat_interleave(num_best, 0) for name, tensor in inputs.items()}
    read = torch.cat([start, targets[:, :-1]], 1)  # (N, T)
    logits = model(**inputs, decoder_input_ids=read, use_cache=False).logits  # (N, T, V)
    log_p = logits.float().log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    # Behind the first end there is padding.
    ends = (targets == config.eos_token_id).long()
    counts = ends.cumsum(1) - ends == 0
    counts[:, : _num_forced(model)] = False
    found: list[float] = (log_p * counts).sum(1).tolist()
    return found


def _num_forced(model: Any) -> int:
    """Tokens at the start of a target that are not searched: the language, if one is forced."""
    return int(model.generation_config.forced_bos_token_id is not None)
