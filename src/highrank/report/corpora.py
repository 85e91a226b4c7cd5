"""Tables of corpora for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from highrank.data.catalog import Listing
from highrank.data.corpus import SPLITS, Corpus
from highrank.data.tokenizer import unit_of
from highrank.report.formats import make_table, printable


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
            _count(tokens),
            _count(listing.vocab_size),
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


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"
