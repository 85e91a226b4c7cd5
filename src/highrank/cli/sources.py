"""What `highrank train` trains, and on what: a preset or the user's text, found and checked."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from highrank import presets
from highrank.cli.console import did_you_mean, progress
from highrank.cli.options import given_options, value_of
from highrank.config import RunConfig

if TYPE_CHECKING:
    from highrank.build import CheckedRun
    from highrank.cli.train import Options
    from highrank.data.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class Source:
    preset: str
    default: RunConfig
    """What the options override."""
    text: str | None
    """The path of the user's text."""
    name: str | None
    """What the user wrote; None if it was left out."""
    options: list[str]
    """The other arguments of the command."""


def read_source(arguments: list[str]) -> Source:
    """The first argument, if it is no option; with --resume RUN, the run's configuration."""
    from highrank.run.configuration import read_config

    name, options = None, arguments
    if arguments and not arguments[0].startswith("-"):
        name, *options = arguments
    text = name if name is not None and name not in presets.PRESETS else None
    if text is not None:
        _check_text(text)
    preset = "small" if name is None or text is not None else name
    run = value_of("resume", options)
    default = presets.get(preset) if run is None else read_config(Path(run))
    return Source(preset=preset, default=default, text=text, name=name, options=options)


def _check_text(path: str) -> None:
    """Raise unless there is something at the path that can be a text."""
    from highrank.data.catalog import CATALOG, prepared_folder
    from highrank.run.configuration import is_run

    if not Path(path).exists():
        is_corpus = path in CATALOG or prepared_folder(path) is not None
        guess = f": did you mean --corpus {path}?" if is_corpus else ""
        guess = guess or did_you_mean(path, presets.PRESETS)
        raise ValueError(
            "the first argument must be the path of a text or a preset of `highrank presets`, got "
            f"{path!r}{guess}"
        )
    if is_run(Path(path)):
        raise ValueError(f"{path} is a run: resume it with `highrank train --resume {path}`")


def check_options(options: "Options", source: Source) -> "tuple[CheckedRun, Corpus, float | None]":
    """Find mistakes before a folder is made; returns the run, its corpus, its budget in seconds."""
    from highrank.build import check_run, check_streams
    from highrank.environment import set_threads
    from highrank.training.budget import parse_duration
    from highrank.training.log import check_tensorboard

    if source.name is not None and options.resume is not None:
        raise ValueError(f"--resume must come without a preset or a text, got {source.name}")
    budget = None if options.budget is None else parse_duration(options.budget)
    if options.tensorboard:
        check_tensorboard()
    set_threads(options.threads)
    corpus, config = _find_corpus(options, source)
    checked = check_run(config, corpus, options.device)
    if options.test:
        num_test = corpus.header.splits["test"].num_tokens
        check_streams("test-batch-size", options.test_batch_size, num_test, "test")
    return checked, corpus, budget


def _find_corpus(options: "Options", source: Source) -> "tuple[Corpus, RunConfig]":
    """The corpus, and the configuration with its name; fitted to it if it is the user's text."""
    from highrank.data.catalog import corpus_option
    from highrank.data.prepare import resolve_corpus
    from highrank.presets.small import fitted
    from highrank.run.folder import read_corpus

    config = options.config
    if options.resume is not None:
        return read_corpus(options.resume, config).prepared, config
    if source.text is None:
        corpus = resolve_corpus(config.corpus, progress)
        is_named = config.corpus in (corpus.name, str(corpus.path))
        return corpus, config if is_named else replace(config, corpus=corpus_option(corpus))
    if config.corpus != source.default.corpus:
        raise ValueError(f"--corpus must come without a text, got {source.text}")
    corpus = resolve_corpus(source.text, progress)
    num_train = corpus.header.splits["train"].num_tokens
    config = fitted(config, num_train, given_options(source.options))
    return corpus, replace(config, corpus=corpus_option(corpus))


def resume_command(options: "Options", folder: Path) -> str:
    given = {"budget": options.budget, "threads": options.threads}
    if options.device != "cpu":
        given["device"] = options.device
    if options.test_batch_size != 1:
        given["test-batch-size"] = options.test_batch_size
    parts = [f"--{name} {value}" for name, value in given.items() if value is not None]
    parts += ["--tensorboard"] if options.tensorboard else []
    parts += [] if options.test else ["--no-test"]
    return " ".join([f"highrank train --resume {shlex.quote(str(folder))}", *parts])
