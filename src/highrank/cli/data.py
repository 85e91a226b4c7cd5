"""`highrank data …`: list and prepare corpora."""

import shlex
from collections.abc import Callable
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.data.prepare import Prepared, TextOptions

AS_USUAL = TextOptions()


def data() -> None:
    """List and prepare corpora: known ones, or your own text."""


def list_(
    *,
    cache: Annotated[Path | None, unless_given("the user's", "PATH")] = None,
    json: bool = False,
) -> None:
    """Show the known corpora, their licences and sizes, and what is prepared.

    Args:
        cache: Folder of prepared corpora.
        json: Print all of it as JSON instead of a table.
    """
    from highrank.data.catalog import cache_folder, list_corpora
    from highrank.report.corpora import corpora_table

    listings = list_corpora(cache)
    if json:
        print(dumps([asdict(listing) for listing in listings]))
        return
    console = Console()
    console.print(corpora_table(listings, cache_folder(cache)))
    console.print("Next: highrank data prepare NAME, or the path of your own text")


def prepare(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|PATH")],
    *,
    from_: Annotated[
        Path | None,
        tyro.conf.arg(name="from", metavar="PATH", help_behavior_hint="(default: none)"),
    ] = None,
    name: Annotated[str | None, unless_given("as the file or folder", "STR")] = None,
    cache: Annotated[Path | None, unless_given("the user's", "PATH")] = None,
    text: Annotated[TextOptions, tyro.conf.arg(name="")] = AS_USUAL,
    force: bool = False,
    json: bool = False,
) -> None:
    """Turn a corpus into token files that training reads.

    Known corpora follow their published protocol: see highrank data list

    Your own text is a file, or a folder of .txt files, in UTF-8.

    It is cut at 90 % and 95 % into train, valid, test, unless these are its files.

    Args:
        source: A known corpus, or the path of your text.
        from_: Folder or archive with the known corpus' files, instead of a download.
        name: What to call your text.
        cache: Folder of prepared corpora.
        text: For your own text.
        force: Replace a prepared corpus of the same name.
        json: Print counts, hashes and the folder as JSON instead of a table.
    """
    from highrank.data.catalog import CATALOG
    from highrank.data.prepare import prepare_known, prepare_text

    is_known = source in CATALOG
    if is_known and (name is not None or text != AS_USUAL):
        raise ValueError(f"{source} has a fixed protocol: options for your own text do not apply")
    if not is_known and from_ is not None:
        raise ValueError(f"--from must go with one of {', '.join(CATALOG)}, got {source!r}")
    if not is_known and not Path(source).exists():
        known = ", ".join(CATALOG)
        raise ValueError(f"the corpus must be a file, a folder or one of {known}, got {source!r}")
    with progress(f"Preparing {source}") as on_progress:
        if is_known:
            done = prepare_known(
                source, source=from_, cache=cache, force=force, on_progress=on_progress
            )
        else:
            done = prepare_text(
                Path(source),
                name=name,
                options=text,
                cache=cache,
                force=force,
                on_progress=on_progress,
            )
    if json:
        header = asdict(done.corpus.header)
        print(dumps({"path": str(done.corpus.path), "is_new": done.is_new} | header))
    else:
        _tell(done, done.corpus.name if cache is None else str(done.corpus.path))


def _tell(done: Prepared, corpus_option: str) -> None:
    from highrank.data.catalog import CATALOG
    from highrank.report.corpora import corpus_table

    corpus, console = done.corpus, Console(highlight=False, markup=False)
    console.print(corpus_table(corpus))
    console.print(f"Split: {corpus.header.recipe.split}", soft_wrap=True)
    where = "is in" if done.is_new else "was prepared before, and nothing was done: it is in"
    console.print(f"{corpus.name} {where} {corpus.path}", soft_wrap=True)
    if corpus.name in CATALOG:
        console.print(f"Licence: {CATALOG[corpus.name].licence}", soft_wrap=True)
    command = f"highrank train --corpus {shlex.quote(corpus_option)}"
    console.print(f"Next: {command}", soft_wrap=True)


CORPORA: dict[str, Callable[..., Any]] = {"list": list_, "prepare": prepare}
