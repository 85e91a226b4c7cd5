"""Perplexity of a text under a causal language model of Hugging Face.

The text is read in windows of at most `context` tokens that overlap: each goes on `stride` tokens
beyond the one before. Every token but the first is predicted once, from at least
context - stride tokens before it where there are so many. M tokens of the text, D hidden size.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.data.text import read_file
from highrank.environment import environment
from highrank.evaluation.result import Result
from highrank.evaluation.static import Evaluation
from highrank.files import file_sha256
from highrank.integrations.huggingface.reader import HuggingFaceModel
from highrank.progress import OnProgress, ProgressBar, no_progress

# Of models that can read more, too: longer windows need much more memory.
LONGEST_CONTEXT = 1024
# The type of exported runs.
EXPORTED = "highrank-run"


class Window(NamedTuple):
    start: int
    """The first token that is read."""
    first: int
    """The first that is predicted."""
    end: int
    """Behind the last that is predicted."""


def text_windows(num_tokens: int, context: int, stride: int) -> Iterator[Window]:
    first, end = 1, min(num_tokens, context + 1)
    while first < num_tokens:
        yield Window(max(0, end - 1 - context), first, end)
        first, end = end, min(num_tokens, end + stride)


class Scorer(NamedTuple):
    """A model whose weights are in memory."""

    vocab_size: int
    loss: Callable[[Tensor, Tensor], Tensor]
    """Summed loss of targets (n,), the tokens after the last n of those that are read (L,)."""


def make_scorer(model: HuggingFaceModel, device: str) -> Scorer:
    """A model's loss from hidden states and head, without a table of logits."""
    if model.config.model_type == EXPORTED:
        return _exported_scorer(model, device)
    predictor = model.load(device)

    def loss(tokens: Tensor, target: Tensor) -> Tensor:
        hidden = predictor.states(tokens[None])[0, -len(target) :]  # (n, D)
        found: Tensor = predictor.head(hidden, target.to(hidden.device), reduction="sum")[1]
        return found

    return Scorer(predictor.head.vocab_size, loss)


def _exported_scorer(model: HuggingFaceModel, device: str) -> Scorer:
    """The same of an exported run, whose head may look back: from its logits."""
    loaded, prefix = model.load_weights(device), torch.tensor(model.prefix, dtype=torch.long)

    def loss(tokens: Tensor, target: Tensor) -> Tensor:
        read = torch.cat([prefix, tokens])[None].to(device)  # (1, prefix + L)
        logits = loaded(input_ids=read).logits[0, -len(target) :]  # (n, V)
        return F.cross_entropy(logits.float(), target.to(device), reduction="sum")

    return Scorer(int(model.config.vocab_size), loss)


@torch.no_grad()
def evaluate_tokens(
    scorer: Scorer,
    tokens: Sequence[int],
    context: int,
    stride: int,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Mean loss of all tokens but the first."""
    if len(tokens) < 2:
        raise ValueError(f"the text must have at least 2 tokens, got {len(tokens)}")
    if (largest := max(tokens)) >= scorer.vocab_size:
        size = scorer.vocab_size
        raise ValueError(f"the tokenizer must have ids below the model's {size}, got {largest}")
    total, ids = 0.0, torch.tensor(tokens)  # (M,)
    for start, first, end in text_windows(len(tokens), context, stride):
        total += scorer.loss(ids[start : end - 1], ids[first:end]).item()
        if on_progress is not None:
            on_progress(end / len(tokens), "evaluating")
    return Evaluation(total / (len(tokens) - 1), len(tokens) - 1)


def evaluate_text(
    model: HuggingFaceModel,
    path: Path,
    *,
    context: int | None = None,
    stride: int | None = None,
    device: str = "cpu",
    progress: ProgressBar = no_progress,
) -> Result:
    """Evaluate a text file; nothing is written.

    Args:
        context: tokens of a window; if None, the model's longest, and at most 1,024.
        stride: tokens between windows; half of the context if None.
    """
    context, stride = _choose_windows(model, context, stride)
    text = read_file(path)
    tokens, size = model.encode(text), len(text.encode())
    start = time.monotonic()
    with progress(f"Evaluating {model.name} on {path.name}") as on_progress:
        found = evaluate_tokens(make_scorer(model, device), tokens, context, stride, on_progress)
    if not math.isfinite(found.nats):
        raise ValueError(f"The loss of {model.name} on {path.name} is {found.nats}.")
    weights = Path(model.name) / "model.safetensors"
    return Result(
        value=found.perplexity,
        unit="perplexity per token",
        nats=found.nats,
        bits=found.bits,
        bits_per_byte=found.bits * len(tokens) / size,
        bits_per_char=found.bits * len(tokens) / len(text),
        num_tokens=found.num_tokens,
        unknown={"tokens": tokens.count(model.tokenizer.unk_token_id)},
        split=f"text {path.name}",
        method="static",
        settings={"context": context, "stride": stride},
        run=model.name,
        model_sha256=file_sha256(weights) if weights.is_file() else "",
        corpus="",
        data_sha256=file_sha256(path),
        seconds=time.monotonic() - start,
        environment=environment(),
    )


def _choose_windows(
    model: HuggingFaceModel, context: int | None, stride: int | None
) -> tuple[int, int]:
    most = model.max_window
    if context is None:
        context = min(LONGEST_CONTEXT, most or LONGEST_CONTEXT)
    if context < 1 or (most is not None and context > most):
        limit = "at least 1" if context < 1 else f"at most {most} for {model.name}"
        raise ValueError(f"context must be {limit}, got {context}")
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride must be between 1 and the context, {context}, got {stride}")
    return context, stride
