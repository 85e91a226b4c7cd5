"""`highrank train [PRESET]`: parse, train, and say what came out."""

import json
import shlex
import sys
from pathlib import Path

import tyro
from rich.console import Console

from highrank import presets
from highrank.cli.train_options import Options, checked
from highrank.cli.train_result import as_json, evaluate_run, tell
from highrank.cli.training_bar import training_bar
from highrank.config import RunConfig


def train() -> None:
    """Train a language model: `highrank train [PRESET] [options]`; see `highrank presets`."""


def run_train(arguments: list[str]) -> None:
    """The command itself. The preset comes first, `small` if there is none."""
    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else "small"
    options = tyro.cli(
        Options,
        prog=f"highrank train {preset}",
        description=f"Train a language model, starting from the preset {preset}.\n\n"
        "Another preset comes first: highrank train ptb-mos; see highrank presets",
        default=Options(config=_default_config(preset, arguments)),
        args=arguments[named:],
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    if named and options.resume is not None:
        raise ValueError(f"--resume must come without a preset, got {preset}")
    _train(options, preset)


def _default_config(preset: str, arguments: list[str]) -> RunConfig:
    """The preset's configuration or, with --resume RUN, the run's."""
    from highrank.training.directory import read_config

    for index, argument in enumerate(arguments):
        if argument.startswith("--resume="):
            return read_config(Path(argument.removeprefix("--resume=")))
        if argument == "--resume" and index + 1 < len(arguments):
            return read_config(Path(arguments[index + 1]))
    return presets.get(preset)


def _train(options: Options, preset: str) -> None:
    from highrank.training.directory import new_run
    from highrank.training.loop import Run
    from highrank.training.tensorboard import tensorboard_writer
    from highrank.training.trainer import Diverged

    corpus, budget = checked(options)
    folder = options.resume or options.out or new_run(options.runs, preset)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Run: {folder}")
    with training_bar() as show:
        run = Run(
            options.config,
            corpus,
            folder,
            budget=budget,
            device=options.device,
            on_progress=show,
        )
        if options.tensorboard:
            run.on_event = tensorboard_writer(folder, run.trainer.step)
        try:
            outcome = run.go()
        except Diverged as error:
            print(f"highrank: {error} {error.advice}", file=sys.stderr)
            sys.exit(3)
    go_on = f"Saved. Go on with: {_command_to_go_on(options, folder)}"
    if outcome.reason == "interrupted":
        console.print(go_on)
        sys.exit(130)
    try:
        found = evaluate_run(run, corpus, outcome)
    except KeyboardInterrupt:
        console.print(f"Interrupted in the test at the end. {go_on}")
        sys.exit(130)
    if options.json:
        print(json.dumps(as_json(run, outcome, found), indent=2))
    else:
        tell(run, corpus, outcome, found)


def _command_to_go_on(options: Options, folder: Path) -> str:
    given = {"budget": options.budget, "threads": options.threads}
    if options.device != "cpu":
        given["device"] = options.device
    words = [f"--{name} {value}" for name, value in given.items() if value is not None]
    words += ["--tensorboard"] if options.tensorboard else []
    return " ".join([f"highrank train --resume {shlex.quote(str(folder))}", *words])
