"""`highrank`: which command, and what the user sees when something goes wrong."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import tyro

from highrank.cli.demo import demo

COMMANDS: dict[str, Callable[..., Any]] = {"demo": demo}
DESCRIPTION = "Output layers of language models beyond one softmax. Start with `highrank demo`."


def main() -> None:
    """Run a command. A caller's mistake ends with one line and code 2, Ctrl-C with code 130."""
    arguments = sys.argv[1:] or ["--help"]
    if arguments == ["--version"]:
        print(f"highrank {version('highrank')}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="highrank",
            description=DESCRIPTION,
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except KeyboardInterrupt:
        print("highrank: interrupted", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"highrank: {error}", file=sys.stderr)
        sys.exit(2)
