"""`highrank evaluate MODEL`: perplexity of a trained run, of each token of a text, of models."""

from pathlib import Path
from typing import Annotated

import tyro

from highrank.cli.evaluate.models import evaluate_models, is_foreign
from highrank.cli.evaluate.options import Options, check
from highrank.cli.evaluate.run import evaluate_run
from highrank.environment import set_threads

DEFAULTS = Options()


# The help shows each paragraph on a line of its own: none is longer than 80 columns.
def evaluate(
    models: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL [MODEL …]", help_behavior_hint="(required)"),
    ],
    options: Annotated[Options, tyro.conf.arg(name="")] = DEFAULTS,
) -> None:
    """Measure a run's perplexity: static, dynamic, with a cache.

    Prints a table, and writes each result into the run's folder: docs/evaluation.md

    With --text, several runs and Hugging Face models are rows of one table.

    Args:
        models: Run that `highrank train` made. With --text, also Hugging Face models.
        options: What to evaluate, and how.
    """
    if not models:
        raise ValueError("a model must be given: a run's folder, or a Hugging Face model's")
    has_foreign = any(is_foreign(name, options) for name in models)
    check(options, has_foreign)
    set_threads(options.threads)
    if has_foreign or len(models) > 1:
        evaluate_models(models, options)
    else:
        evaluate_run(Path(models[0]), options)
