"""The page of a training run: perplexities, learning curve, samples, settings."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from highrank.config import RunConfig
from highrank.data.corpus import Corpus
from highrank.data.tokenizer import unit_of
from highrank.data.vocabulary import UNK
from highrank.environment import environment
from highrank.evaluation.check import check_word
from highrank.report.figure import draw, to_svg
from highrank.report.formats import duration, environment_text, model_size, printable
from highrank.report.page import Column, Figure, Table, render
from highrank.report.training import busy_text, learning_chart
from highrank.training.result import TrainingResult


def samples_command(run: str, temperature: float, corpus: Corpus) -> str:
    """The command that draws more samples, as those after a training are drawn."""
    no_unk = " --no-unk" if UNK in corpus.vocabulary else ""
    return printable(f"highrank generate {shlex.quote(run)} --temperature {temperature}{no_unk}")


def run_page(
    result: TrainingResult,
    config: RunConfig,
    corpus: Corpus,
    metrics: Sequence[Mapping[str, Any]],
    samples: Sequence[str],
    temperature: float,
    command: str,
) -> str:
    """The page as HTML.

    Args:
        metrics: the lines of metrics.jsonl.
        samples: generated texts, without <unk>.
        temperature: of the samples.
        command: what was typed, for those who want to repeat it.
    """
    unit, chart = unit_of(corpus.header.recipe.tokenizer), learning_chart(metrics)
    name, found, _ = result.evaluations(config.valid_batch_size)[-1]
    spent = f"{result.outcome.num_tokens:,} tokens in {duration(result.outcome.seconds)}"
    caption = f"The run is {result.outcome.reason}: {spent}."
    return render(
        "report/run_page.html.j2",
        title=printable(f"{result.run}"),
        verdict=f"Perplexity {found.perplexity:.2f} per {unit} on {name}.",
        answer=_answer(result, corpus, name),
        footer=environment_text(environment()),
        numbers=_numbers(result, config, unit),
        curve=Figure(
            svg=to_svg(draw(chart)),
            title="Learning curve",
            caption=f"{caption} {busy_text(result)}" if result.is_busy else caption,
            description="Perplexity of train and valid against tokens read.",
        ),
        samples=[printable(text) for text in samples],
        temperature=temperature,
        has_unk=UNK in corpus.vocabulary,
        commands=(command, samples_command(result.run, temperature, corpus)),
        settings=Table(
            title="Settings",
            columns=(Column("option", is_number=False), Column("value", is_number=False)),
            rows=(
                ("parameters", model_size(result.num_parameters, result.table)),
                *_flat(asdict(config)),
            ),
        ),
    )


def _answer(result: TrainingResult, corpus: Corpus, split: str) -> str:
    """Where the perplexity was measured, and what else it says."""
    bits, unknown = result.bits_per_byte(split), result.unknown_fraction(split)
    size = model_size(result.num_parameters, result.table)
    text = f"Corpus {printable(corpus.name)}, {size}"
    if bits is not None:
        text += f", {'at least ' if unknown else ''}{bits:.3f} bits per byte of {split}"
    return f"{text}; {unknown:.1%} of its tokens are <unk>." if unknown else f"{text}."


def _numbers(result: TrainingResult, config: RunConfig, unit: str) -> Table:
    """A row for each split that was evaluated."""
    titles = ("perplexity", "nats", "bits/byte", "<unk>", "tokens", "batch size")
    rows = []
    for name, found, batch_size in result.evaluations(config.valid_batch_size):
        bits, unknown = result.bits_per_byte(name), result.unknown_fraction(name)
        values = (
            f"{found.perplexity:.2f}",
            f"{found.nats:.4f}",
            "–" if bits is None else f"{bits:.4f}",
            "–" if unknown is None else f"{unknown:.1%}",
            f"{found.num_tokens:,}",
        )
        rows.append((name, *values, str(batch_size)))
    return Table(
        title="Perplexity, static",
        caption=f"Perplexity and nats: per {unit}. tokens: how many were predicted. bits/byte: a "
        "lower bound where there are <unk>, since what they stand for is not spelled."
        + _checked(result),
        columns=(Column("split", is_number=False), *map(Column, titles)),
        rows=tuple(rows),
    )


def _checked(result: TrainingResult) -> str:
    """The sentences of a check of components beside the softmaxes."""
    if result.check is None:
        return ""
    sentences = " ".join(finding.sentence for finding in result.check)
    return f" {check_word(result.check).capitalize()}: {sentences}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Options as they are called on the command line, and their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = prefix if name == "options" else f"{prefix}{name.replace('_', '-')}."
            yield from _flat(value, inner)
        elif value is not None:
            text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            yield f"{prefix}{name.replace('_', '-')}", printable(text)
