"""`highrank export RUN DIR`: a trained run as a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import tyro

from highrank.cli.console import Threads, as_json, plain_console


def export(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    *,
    force: bool = False,
    threads: Threads = None,
    json: bool = False,
) -> None:
    """Write a run for Hugging Face transformers: weights, tokenizer, model card.

    AutoModelForCausalLM and AutoTokenizer load it and generate the same text.

    Args:
        run: Folder of a run that `highrank train` made.
        folder: A new folder.
        force: Replace an earlier export.
        threads: Threads of the matrix multiplies.
        json: Print the folder and its files as JSON.
    """
    from highrank.environment import set_threads
    from highrank.integrations.huggingface.library import check_installed
    from highrank.run.configuration import is_hugging_face
    from highrank.run.loading import load_run

    check_installed("export a run")
    from highrank.integrations.huggingface.export import check_target, export_run

    if is_hugging_face(run):
        raise ValueError(f"{run} is a Hugging Face model already: there is nothing to export")
    set_threads(threads)
    check_target(folder, force)
    found = export_run(load_run(run), folder, force)
    if json:
        print(as_json(found._asdict() | {"folder": str(found.folder)}))
        return
    console = plain_console()
    console.print(f"{found.folder}: {found.num_parameters:,} parameters; {', '.join(found.files)}")
    console.print("Load it as its README.md shows: AutoModelForCausalLM and AutoTokenizer.")
