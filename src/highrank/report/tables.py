"""Tables for the terminal: corpora, evaluations, those of papers, what a search tried."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from highrank.data.catalog import Listing
from highrank.data.corpus import SPLITS, Corpus
from highrank.data.tokenizer import unit_of
from highrank.evaluation.check import check_word
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.result import Dataset, Result
from highrank.evaluation.search import Search
from highrank.presets import Published
from highrank.report.formats import count, make_table, perplexity, printable

# Settings that a search varies, as they are called on the command line.
SEARCHED = {
    "dynamic": ("lr", "epsilon", "decay"),
    "cache": ("window", "theta", "weight"),
    "temperature": ("temperature",),
}
MOST_ROWS, MOST_UNKNOWN = 12, 10


def results_table(results: Sequence[Result], published: Sequence[Published] = ()) -> Table:
    """One row for each result, then the papers' rows for the same methods and splits."""
    numbers = ("perplexity", "nats", "bits/byte", "<unk>", "tokens")
    title, caption = _title(results[0]), _notes(results)
    best = best_results(results)
    table = make_table(("method", "split"), numbers, title=title, caption=caption)
    for result in results:
        # Settings and the names of files would make tall rows: they stand below and above.
        table.add_row(
            result.method,
            "text" if result.split.startswith("text ") else printable(result.split),
            ("* " if result in best else "") + _perplexity(result.nats),
            *(f"{n:.4f}" for n in (result.nats, result.bits_per_byte)),
            _unknown(result),
            f"{result.num_tokens:,}",
        )
    table.add_section()
    for row in published_rows(results, published):
        table.add_row(*row, *[""] * (len(numbers) - 1))
    return table


def best_results(results: Sequence[Result]) -> list[Result]:
    """The lowest perplexity on each split that was evaluated by several methods."""
    splits: dict[str, list[Result]] = {}
    for result in results:
        splits.setdefault(result.split, []).append(result)
    return [min(some, key=lambda one: one.nats) for some in splits.values() if len(some) > 1]


def models_table(results: Sequence[Result]) -> Table:
    """One row for each model on one text."""
    note = (
        "perplexity: per token of each model's own tokenizer; only bits/byte compare models of "
        "different tokenizers. tokens: how many were predicted. context, stride: a Hugging Face "
        "model reads windows of so many tokens, and predicts so many in each; a run reads all, or "
        "what network, head and cache can see."
    )
    if any(map(_has_unknown, results)):
        note += " ≥: a lower bound, since what <unk> stands for is not spelled."
    numbers = ("perplexity", "bits/byte", "tokens", "<unk>", "context", "stride")
    title = printable(results[0].split.removeprefix("text "))
    table = make_table(("model",), numbers, title=title, caption=note)
    for result in results:
        table.add_row(
            printable(result.run),
            _perplexity(result.nats),
            ("≥ " if _has_unknown(result) else "") + f"{result.bits_per_byte:.4f}",
            f"{result.num_tokens:,}",
            _unknown(result),
            count(result.settings.get("context")),
            count(result.settings.get("stride")),
        )
    return table


def _has_unknown(result: Result) -> bool:
    return result.unknown.get("tokens", 0) > 0


def _unknown(result: Result) -> str:
    """The fraction of tokens that are read as <unk>."""
    return f"{result.unknown.get('tokens', 0) / result.num_tokens:.1%}"


def _unit(text: str) -> str:
    """The kind of token: word, character or token."""
    return text.removeprefix("perplexity per ")


def _notes(results: Sequence[Result]) -> str:
    """The settings, what the columns are, and what the rows must not be compared with."""
    first, methods = results[0], {result.method for result in results}
    unit = _unit(first.unit)
    note = f"perplexity and nats: per {unit}. tokens: how many were predicted, with <eos>."
    note = f"* the lowest of its split. {note}" if best_results(results) else note
    if first.unknown.get("tokens", 1):
        note += " bits/byte: a lower bound, since what <unk> stands for is not spelled."
    note += _checked(results)
    note += _searched(results)
    if "static" not in methods and first.split in ("valid", "test"):
        note += f" {first.method} has one stream: compare with static --batch-size 1."
    return "\n".join([*_settings(results), note])


def _checked(results: Sequence[Result]) -> str:
    """What was examined, by method, or all that failed."""
    known = [result for result in results if result.check]
    failed = [
        f"{result.method} on {printable(result.split)} {word}"
        for result in known
        if (word := check_word(result.check)) != "checked"
    ]
    if failed:
        found = "; ".join(failed)
        return f" {found}: these scores are not a distribution's; see `highrank check`."
    names = {finding.name for result in known for finding in result.check or ()}
    parts = ["probabilities sum to one and depend on no later token"] if "sum" in names else []
    if "scored before learned" in names:
        parts.append("what learns from the text scores it before")
    methods = ", ".join(dict.fromkeys(result.method for result in known))
    which = "" if len(known) == len(results) else f" ({methods})"
    return f" Checked{which}: {'; '.join(parts)}." if known else ""


def _searched(results: Sequence[Result]) -> str:
    """How settings were found, if they were; a temperature is fitted, and has no others to try."""
    searches = [result.search[name] for result in results for name in searched_parts(result)]
    if not searches:
        return ""
    return (
        f" Settings: the best on {searches[0]['num_tokens']:,} tokens of valid, static (lr 0, "
        "weight 0) among those that were tried."
    )


def searched_parts(result: Result) -> list[str]:
    """The parts of a method whose settings a larger search could improve."""
    return [name for name in result.search if name != "temperature"]


def _settings(results: Sequence[Result]) -> list[str]:
    """A line for each method, or for each split where its settings differ."""
    splits: dict[str, list[str]] = {}
    for result in results:
        splits.setdefault(method_text(result), []).append(printable(result.split))
    if len(splits) == len({result.method for result in results}):
        return [f"{text}." for text in splits]
    return [f"{', '.join(some)}: {text}." for text, some in splits.items()]


def _title(result: Result) -> str:
    """The run and what it was evaluated on: its corpus, or a text file."""
    if result.split in ("valid", "test"):
        return printable(f"{result.run} on {result.corpus}")
    return printable(f"{result.run} on {result.split}, with the vocabulary of {result.corpus}")


def _context(result: Result) -> str:
    context = result.settings.get("context")
    return "" if context is None else f", context {context:,}, stride {result.settings['stride']}"


def method_text(result: Result) -> str:
    """`static, batch size 10` or `dynamic: lr 5e-05, epsilon 2e-05, decay 0.002`."""
    alone = ", each line alone" if result.settings.get("independent_lines") else ""
    if result.method == "static":
        text = f"static, batch size {result.settings['batch_size']}{_context(result)}"
        text += ", divided as mos does" if result.settings.get("compat") == "mos" else ""
        return text + alone
    if "order" in result.settings:
        return f"{result.method}: modified Kneser–Ney, counted on the training split, alone"
    parts = []
    for name in result.method.split("+"):
        values = searched_values(name, result.settings[name])
        text = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
        parts.append(
            f"{name}: {text.removeprefix('temperature ')}{_unusual(name, result.settings[name])}"
        )
    return "; ".join(parts) + _context(result) + alone


def _unusual(name: str, settings: Mapping[str, Any]) -> str:
    """Further settings of dynamic evaluation that are not the default."""
    if name != "dynamic":
        return ""
    usual = asdict(DynamicSettings())
    parts = [
        f"{key} {' '.join(map(str, value)) if isinstance(value, tuple | list) else value}"
        for key in ("rule", "segment", "adapt")
        if (value := settings.get(key, usual[key])) != usual[key]
    ]
    return "".join(f", {part}" for part in parts)


def searched_values(name: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """Settings that a search varies, if they matter: a cache of weight 0 has no window."""
    keys: tuple[str, ...] = SEARCHED[name]
    if name == "cache" and settings["weight"] == 0:
        keys = ("weight",)
    elif name == "dynamic" and settings["lr"] == 0:
        keys = ("lr",)
    elif settings.get("rule") == "sgd":
        keys = ("lr", "decay")
    return {key: settings[key] for key in keys}


def published_rows(
    results: Sequence[Result], published: Sequence[Published]
) -> list[tuple[str, str, str]]:
    """Source, split and perplexity, for the splits and methods that the results have."""
    return [
        (
            f"{row.source}, {row.method}" + (", finetuned" if row.is_finetuned else ""),
            result.split,
            f"{row.valid if result.split == 'valid' else row.test:.2f}",
        )
        for row in published
        for result in results
        if result.method == row.method and result.split in ("valid", "test")
    ]


def search_table(name: str, search: Search[Any]) -> Table:
    """The best settings that were tried, best first."""
    trials = sorted(search.trials, key=lambda trial: trial.nats)
    values = [searched_values(name, asdict(trial.settings)) for trial in trials]
    more = len(trials) - MOST_ROWS
    notes = [f"{more} more are in the result file."] if more > 0 else []
    for key, best in values[0].items():
        tried = sorted({each[key] for each in values if key in each})
        # Nothing is below 0.
        if len(tried) > 1 and best in (tried[0], tried[-1]) and best > 0:
            end = "lowest" if best == tried[0] else "highest"
            notes.append(f"The best {key} is the {end} that was tried.")
    table = make_table(
        (),
        (*SEARCHED[name], "perplexity"),
        title=f"{name}: tried on {search.num_tokens:,} tokens of valid",
        caption=" ".join(notes) or None,
    )
    for trial, each in zip(trials[:MOST_ROWS], values, strict=False):
        cells = (f"{each[key]:g}" if key in each else "–" for key in SEARCHED[name])
        table.add_row(*cells, _perplexity(trial.nats))
    return table


def unknown_text(dataset: Dataset, unit: str) -> str:
    """Which tokens of a file are outside the vocabulary; nothing if all are in it.

    Args:
        unit: of the result, such as "perplexity per word".
    """
    if not dataset.unknown:
        return ""
    distinct, kind = len(dataset.unknown), _unit(unit)
    shown = ", ".join(token for token, _ in dataset.unknown.most_common(MOST_UNKNOWN))
    return printable(
        f"Not in the vocabulary, read as <unk>: {dataset.unknown.total():,} of "
        f"{len(dataset.tokens) - 1:,} tokens; {distinct:,} distinct {kind}"
        f"{'' if distinct == 1 else 's'}: {shown}{', …' if distinct > MOST_UNKNOWN else ''}"
    )


def trained_on_text(dataset: Dataset, run: Path) -> str:
    """That most of a file was read in training; nothing if the run has another text."""
    if not dataset.is_trained_on:
        return ""
    return printable(
        f"{dataset.name.removeprefix('text ')} is the text that {run} was trained on: most of it "
        "was read in training, which makes its perplexity too low. The split test was not: "
        f"highrank evaluate {shlex.quote(str(run))} --split test"
    )


def _perplexity(nats: float) -> str:
    value = perplexity(nats)
    return f"{value:.2f}" if value < 1e6 else "> 1e6"


def corpora_table(listings: Sequence[Listing], cache: Path) -> Table:
    """All corpora, known and prepared, 80 columns wide at most."""
    table = make_table(
        ("corpus", "text", "licence"),
        ("tokens", "distinct"),
        caption=(
            f"Prepared corpora are in {cache / 'corpora'}. tokens: of the training split. "
            "distinct: the vocabulary's size. Downloads are checked by hash and by the published "
            "counts; whether an address still answers is found out when it is used. Addresses: "
            "--json."
        ),
    )
    table.add_column("ready", no_wrap=True)
    for listing in listings:
        tokens = None if listing.num_tokens is None else listing.num_tokens.get("train")
        ready = "yes" if listing.prepared else "broken" if listing.problem else "no"
        table.add_row(
            listing.name,
            printable(listing.title),
            listing.licence or "–",
            count(tokens),
            count(listing.vocab_size),
            ready,
        )
    return table


def corpus_table(corpus: Corpus) -> Table:
    """The splits of a prepared corpus."""
    header = corpus.header
    title = f"{corpus.name}: {header.vocab_size:,} distinct {unit_of(header.recipe.tokenizer)}s"
    table = make_table(("split",), ("tokens", "<unk>", "fraction"), title=title)
    for name in SPLITS:
        split = header.splits[name]
        cells = (f"{split.num_tokens:,}", f"{split.num_unknown:,}", f"{split.unknown_fraction:.2%}")
        table.add_row(name, *cells)
    return table
