"""`highrank evaluate MODEL … --text FILE`: several models, Hugging Face's among them, on a text."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from highrank.cli.console import plain_console, progress, show
from highrank.cli.evaluate.options import Options, check_static

if TYPE_CHECKING:
    from highrank.evaluation.result import Result


def is_foreign(name: str, options: Options) -> bool:
    """Whether it is a Hugging Face model; the hub is not asked yet.

    A name with a folder before it, like that of a run here, is a run's that is misspelled.
    """
    from highrank.integrations.huggingface.reader import is_hub_name
    from highrank.run.configuration import is_hugging_face, nearest_run

    folder = Path(name)
    if folder.exists():
        return is_hugging_face(folder)
    is_misspelled = len(folder.parts) > 1 and bool(nearest_run(folder))
    return options.text is not None and is_hub_name(name) and not is_misspelled


def evaluate_models(names: Sequence[str], options: Options) -> None:
    """Print a row for each model; nothing is written into their folders."""
    from highrank.report.tables import models_table

    if options.text is None and is_foreign(names[0], options):
        from highrank.integrations.huggingface.reader import HuggingFaceModel

        # What cannot be evaluated on a text is refused before one is asked for.
        HuggingFaceModel(names[0])
    check_static(options, names[0])
    results: list[Result] = []
    notes: list[str] = []
    try:
        for name in names:
            result, note = _evaluate(name, options)
            results.append(result)
            notes += [note] if note else []
    finally:
        # What there is, whatever happened to the next.
        if results:
            found = {"results": [asdict(result) for result in results]}
            show(found, lambda _: models_table(results), json=options.json)
        for note in notes:
            plain_console(stderr=options.json).print(note)


def _evaluate(name: str, options: Options) -> "tuple[Result, str]":
    """The result, and a note on the text; it may be empty."""
    assert options.text is not None
    if is_foreign(name, options):
        from highrank.environment import check_device
        from highrank.integrations.huggingface.evaluation import evaluate_text
        from highrank.integrations.huggingface.reader import HubError, HuggingFaceModel
        from highrank.run.configuration import nearest_run

        check_device(options.device)
        try:
            model = HuggingFaceModel(name)
        except HubError as error:
            raise ValueError(f"{error}{nearest_run(Path(name))}") from None
        result = evaluate_text(
            model,
            options.text,
            context=options.context,
            stride=options.stride,
            device=options.device,
            progress=progress,
        )
        return result, ""
    from highrank.evaluation.result import evaluate_dataset, file_dataset
    from highrank.evaluation.search import Method
    from highrank.report.tables import trained_on_text
    from highrank.run.loading import load_run

    loaded = load_run(Path(name), options.device)
    dataset = file_dataset(loaded, options.text)
    result = evaluate_dataset(loaded, dataset, Method(), progress=progress)
    return result, trained_on_text(dataset, loaded.folder)
