"""`highrank`: which command, and what the user sees when something goes wrong."""

import inspect
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import tyro

from highrank.cli.audit import audit
from highrank.cli.bench import BENCHMARKS, bench
from highrank.cli.data import CORPORA, data
from highrank.cli.demo import demo
from highrank.cli.evaluate import evaluate
from highrank.cli.generate import generate
from highrank.cli.presets import presets
from highrank.cli.train import run_train, train

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "data": data,
    "train": train,
    "presets": presets,
    "evaluate": evaluate,
    "generate": generate,
    "audit": audit,
    "bench": bench,
}
# Commands that have commands: `highrank bench loss`. The docstring in `COMMANDS` describes all.
GROUPS: dict[str, dict[str, Callable[..., Any]]] = {"data": CORPORA, "bench": BENCHMARKS}
DESCRIPTION = "Output layers of language models beyond one softmax. Start with `highrank demo`."


def main() -> None:
    """Run a command. A caller's mistake ends with one line and code 2, Ctrl-C with code 130."""
    arguments = sys.argv[1:] or ["--help"]
    try:
        try:
            _run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        print("highrank: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe has left (`highrank … | head`): nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        print(f"highrank: {error}", file=sys.stderr)
        sys.exit(2)
    except (RuntimeError, MemoryError) as error:
        signs = ("allocate", "out of memory", "overflow")
        if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in signs):
            raise
        reason = (str(error).splitlines() or ["no reason given"])[0]
        print(
            f"highrank: there must be enough memory for these sizes, got {reason}", file=sys.stderr
        )
        sys.exit(2)


def _run(arguments: list[str]) -> None:
    if arguments == ["--version"]:
        print(f"highrank {version('highrank')}")
        return
    prog, commands, description = "highrank", COMMANDS, DESCRIPTION
    if arguments[0] in GROUPS:
        prog, commands = f"highrank {arguments[0]}", GROUPS[arguments[0]]
        description = inspect.getdoc(COMMANDS[arguments[0]]) or ""
        arguments = arguments[1:] or ["--help"]
    if prog == "highrank" and arguments[0] == "train":
        # The preset decides the defaults of all options, so it is read before they are.
        run_train(arguments[1:])
        return
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog=prog,
        description=description,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
