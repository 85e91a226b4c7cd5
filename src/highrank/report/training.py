"""The summary and the learning curve at the end of `highrank train`."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from highrank.analysis.components import ComponentReport
from highrank.build import CheckedRun
from highrank.config import ModelConfig, RunConfig
from highrank.data.corpus import Corpus
from highrank.evaluation.check import check_word
from highrank.heads import head_class
from highrank.models import backbone_class
from highrank.report.figure import (
    DASHED,
    Axis,
    Lines,
    Series,
    draw,
    line_style,
    save_png,
)
from highrank.report.formats import millions, model_size, perplexity
from highrank.report.token_axis import against_tokens
from highrank.signatures import arguments_of
from highrank.training.result import TrainingResult

TRAIN = line_style("series-1", marker="o", linestyle=DASHED)
VALID = line_style("series-3", marker="D")
# So many are no limit beside a budget.
MANY_EPOCHS = 1000
# Of the learning curve of the training split.
NUM_PARTS = 40


def run_text(run: CheckedRun, corpus: Corpus, budget: str | None) -> str:
    """The corpus, and what is going to be trained on it."""
    config = run.config
    head, epochs, size = config.head.kind, config.train.epochs, run.num_parameters
    if "num_components" in arguments_of(head_class(head)):
        head += f" with K = {config.head.num_components}"
    network = f"{backbone_class(config.model.kind).title} {_sizes(config.model)}".rstrip()
    parameters = millions(size)
    length = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if budget is None:
        length += ". --budget 10m ends in time, --help lists all options."
    else:
        most = f"{length} at most, " if epochs < MANY_EPOCHS else ""
        length = f"{most}in {budget}. --help lists all options."
    return (
        f"Corpus {corpus.name}: {corpus.header.splits['train'].num_tokens:,} tokens "
        f"({corpus.header.recipe.tokenizer}) to train on, {len(corpus.vocabulary):,} distinct, in "
        f"{corpus.path}\n"
        f"Model: {network}, head {head}, {parameters} parameters; {length}"
    )


def _sizes(model: ModelConfig) -> str:
    """256-192 of an LSTM, 3 × 128 of layers of one size."""
    own = arguments_of(backbone_class(model.kind))
    found: dict[str, Any] = {name: argument.default for name, argument in own.items()}
    found |= model.options
    if "hidden_sizes" in found:
        return "-".join(map(str, found["hidden_sizes"]))
    count = found.get("num_layers", found.get("num_blocks"))
    return f"{count} × {found['hidden_size']}" if count and "hidden_size" in found else ""


def training_summary(result: TrainingResult, config: RunConfig) -> str:
    """Perplexities, files, and whether the components have specialised or collapsed."""
    outcome, run = result.outcome, result.run
    lines = [
        f"{split:5} perplexity {found.perplexity:.2f} (static, batch size {batch_size}, "
        f"{found.num_tokens:,} tokens predicted, {found.nats:.4f} nats each{_text(result, split)}"
        f"{_checked(result)})"
        for split, found, batch_size in result.evaluations(config.valid_batch_size)
    ]
    lines += [
        f"The run is {outcome.reason}: {outcome.num_tokens:,} tokens in {outcome.seconds:.0f} s.",
        f"Size: {model_size(result.num_parameters, result.table)}.",
        f"  {run}/model.safetensors     the best model; highrank.load reads it",
        f"  {run}/metrics.jsonl         all numbers",
        f"  {run}/learning-curve.png    a picture of them",
    ]
    if result.is_busy:
        lines.append(busy_text(result))
    if result.is_unigram:
        # A run that started there knew the frequencies from the first step.
        has_start = config.head.start_bias == "unigram"
        lines.append(
            f"Token frequencies alone have a valid perplexity of {perplexity(result.unigram):.2f}: "
            "this model has learned little else. It may need another learning rate (--train.lr)"
            f"{'' if has_start else ', --head.start-bias unigram'} or a longer training."
        )
    if result.mixture is not None:
        lines.append(_state(result.mixture, run))
    return "\n".join(lines)


def busy_text(result: TrainingResult) -> str:
    """How much a training on a busy machine has waited."""
    return (
        f"The machine was busy: for {result.waiting_fraction:.0%} of its time the training waited "
        "while other processes had the core. Alone, it gets further in the same time."
    )


def _text(result: TrainingResult, split: str) -> str:
    """Bits per byte, and the share of <unk>; empty where the text is not known."""
    bits, unknown = result.bits_per_byte(split), result.unknown_fraction(split)
    return "" if bits is None else f", {bits:.3f} bits per byte, {unknown:.1%} <unk>"


def _checked(result: TrainingResult) -> str:
    """Whether the probabilities are a distribution's, where further components might spoil it."""
    return "" if result.check is None else f", {check_word(result.check)}"


def _state(mixture: ComponentReport, run: str) -> str:
    """Whether the components have specialised, and what to do if not."""
    text = (
        f"At the start of valid the components have {mixture.state_text}: {mixture.state_reason} "
        f"({mixture.information})."
    )
    if mixture.state == "specialised":
        return f"{text} More: highrank audit {shlex.quote(run)}"
    return (
        f"{text} They may specialise if the mixture trains longer, or has smaller embeddings "
        "(--model.embedding-size)."
    )


def learning_curve(metrics: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Write the chart as PNG."""
    save_png(draw(learning_chart(metrics), size=(7, 4), margin=0.1, title=title), path)


def learning_chart(metrics: Sequence[Mapping[str, Any]]) -> Lines:
    """Train and valid perplexity against the tokens of training."""
    epochs = [line for line in metrics if line["event"] == "epoch"]
    if not epochs:
        raise ValueError("a learning curve must have at least one validation, got none")
    steps = [line for line in metrics if line["event"] == "step"]
    train = _smoothed([(line["tokens"], line["train_loss"]) for line in steps])
    valid = [(line["tokens"], line["valid_loss"]) for line in epochs]
    series = [
        Series(
            label=label,
            x=[tokens for tokens, _ in points],
            y=[perplexity(loss) for _, loss in points],
            style=style,
        )
        for label, style, points in (("train, with dropout", TRAIN, train), ("valid", VALID, valid))
    ]
    return against_tokens(series, Axis(label="perplexity", is_log=True), what="tokens read")


def _smoothed(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The means of the points in equal parts of the tokens: single windows are mostly noise."""
    parts: dict[int, list[tuple[int, float]]] = {}
    for tokens, loss in points:
        parts.setdefault((tokens - 1) * NUM_PARTS // points[-1][0], []).append((tokens, loss))
    return [(part[-1][0], fmean(loss for _, loss in part)) for part in parts.values()]
