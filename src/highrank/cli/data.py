"""`highrank data …`: list and prepare corpora."""

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from highrank.cli.console import did_you_mean, plain_console, progress, show, unless_given
from highrank.data.prepare import Prepared, TextOptions

DEFAULTS = TextOptions()


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
    from highrank.report.tables import corpora_table

    listings = list_corpora(cache)
    show(listings, lambda found: corpora_table(found, cache_folder(cache)), json=json)
    if not json:
        plain_console().print("Next: highrank data prepare NAME, or the path of your own text")


def prepare(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|PATH")],
    *,
    from_: Annotated[
        Path | None,
        tyro.conf.arg(name="from", metavar="PATH", help_behavior_hint="(default: none)"),
    ] = None,
    name: Annotated[str | None, unless_given("as the file or folder", "STR")] = None,
    cache: Annotated[Path | None, unless_given("the user's", "PATH")] = None,
    text: Annotated[TextOptions, tyro.conf.arg(name="")] = DEFAULTS,
    processes: Annotated[int | None, unless_given("one for each core", "INT")] = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Turn a corpus into token files that training reads.

    Known corpora follow their published protocol: see highrank data list

    What was interrupted is continued by the same command.

    Your own text is a file, or a folder of .txt files, in UTF-8.

    It is cut at 90 % and 95 % into train, valid, test, unless these are its files.

    Args:
        source: A known corpus, or the path of your text.
        from_: Folder or archive with the known corpus' files, instead of a download.
        name: What to call your text; with --from, your text in files named as the known corpus'.
        cache: Folder of prepared corpora.
        text: For your own text. one-billion takes --max-vocab 100000, too.
        processes: That read the text together.
        force: Replace a prepared corpus of the same name.
        json: Print counts, hashes and the folder as JSON instead of a table.
    """
    from highrank.data.catalog import known_corpus
    from highrank.data.prepare import prepare_known, prepare_text
    from highrank.report.tables import corpus_table

    known = known_corpus(source)
    if known is not None and known.has_cuts and text.max_vocab is not None:
        source, text = f"{source}-{text.max_vocab}", replace(text, max_vocab=None)
    if known is not None and (text != DEFAULTS or (name is not None and from_ is None)):
        raise ValueError(f"{source} has a fixed protocol: options for your own text do not apply")
    if known is None:
        _check_path(source, from_)
    given: Any = {"cache": cache, "force": force, "processes": processes}
    with progress(f"Preparing {source}") as given["on_progress"]:
        if known is not None:
            done = prepare_known(source, source=from_, own_name=name, **given)
        else:
            done = prepare_text(Path(source), name=name, options=text, **given)
    found = {"path": str(done.corpus.path), "is_new": done.is_new} | asdict(done.corpus.header)
    show(found, lambda _: corpus_table(done.corpus), json=json)
    if not json:
        _print_notes(done, done.corpus.name if cache is None else str(done.corpus.path))


def _check_path(source: str, from_: Path | None) -> None:
    from highrank.data.catalog import CATALOG

    known = ", ".join(CATALOG)
    if from_ is not None:
        raise ValueError(f"--from must go with one of {known}, got {source!r}")
    if not Path(source).exists():
        guess = did_you_mean(source, CATALOG)
        raise ValueError(
            f"the corpus must be a file, a folder or one of {known}, got {source!r}{guess}"
        )


def _print_notes(done: Prepared, corpus_option: str) -> None:
    """How the corpus was split, where it is, and what is next."""
    from highrank.data.catalog import known_corpus

    corpus, recipe, console = done.corpus, done.corpus.header.recipe, plain_console()
    where = "is in" if done.is_new else "was prepared before, and nothing was done: it is in"
    console.print(f"Split: {recipe.split}\n{corpus.name} {where} {corpus.path}")
    if known := known_corpus(corpus.name):
        console.print(f"Licence: {known.licence}")
    start = "train lm1b-mos" if recipe.independent_lines else "train"
    console.print(f"Next: highrank {start} --corpus {shlex.quote(corpus_option)}")


CORPORA: dict[str, Callable[..., Any]] = {"list": list_, "prepare": prepare}
