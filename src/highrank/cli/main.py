"""`highrank`: which command, and what the user sees when something goes wrong."""

import codecs
import io
import os
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from importlib import import_module
from typing import Any

from highrank import __version__

# Each is a module beside this one, which is loaded when it is used: the list needs no torch, and
# --version not even the parser.
COMMANDS = {
    "demo": "Fit Softmax, MoC and MoS to languages whose distribution is known exactly.",
    "data": "List and prepare corpora: known ones, or your own text.",
    "train": "Train a language model: highrank train [PRESET|TEXT] [options]",
    "presets": "List the presets of highrank train, with the numbers of the papers.",
    "evaluate": "Measure perplexity: a run's, static, dynamic, with a cache; models on a text.",
    "runs": "List runs, comparisons and finetunings with their perplexities.",
    "generate": "Generate text with a trained model.",
    "compare": "Compare output layers on a text: fairly, with several seeds, within a budget.",
    "finetune": "Upgrade a Hugging Face model to a mixture and train it on, beside its softmax.",
    "translate": "Translate a text with an encoder–decoder, batch by batch.",
    "chat": "Talk with an encoder–decoder that was trained on dialogues.",
    "export": "Write a run as a Hugging Face folder: weights, tokenizer, model card.",
    "audit": "Audit the output layer of one model, or of several side by side.",
    "check": "Check that a model's scores are a distribution's, and honest.",
    "bench": "Measure time and memory on this machine, as ratios of numbers from one run.",
}
# Commands that have commands: `highrank bench loss`. The module's table of them.
GROUPS = {"data": "CORPORA", "bench": "BENCHMARKS"}
DESCRIPTION = (
    "Output layers of language models beyond one softmax. Start with `highrank demo`.\n\n"
    "`highrank --version` prints the version."
)
# Signs of our own texts for terminals that have none but ASCII.
ASCII = {
    "–": "-",
    "−": "-",
    "…": "...",
    "’": "'",
    "·": "*",
    "×": "x",
    "±": "+-",
    "→": "->",
    "\u00a0": " ",
}
# 10⁻³ becomes 10^-3.
ASCII |= {"\u00a0": " ", "⁻": "^-", **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True))}


def main() -> None:
    """Run a command. A caller's mistake ends with one line and code 2, Ctrl-C with code 130."""
    _print_in_any_encoding()
    try:
        try:
            _run(sys.argv[1:] or ["--help"])
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
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        message = _message(error)
        if message is None:
            raise
        if getattr(error, "is_told", False):
            # By the first of several processes.
            sys.exit(2)
        from highrank.report.formats import printable

        print(f"highrank: {printable(message)}", file=sys.stderr)
        sys.exit(2)


def _message(error: Exception) -> str | None:
    """What to tell the user; None for a mistake of ours."""
    from highrank.files import is_disk_full

    text = str(error)
    if isinstance(error, OSError) and error.errno is not None and is_disk_full(error):
        # With its number it is the system's own error, which nobody has explained yet.
        return f"The disk is full: {error.filename or 'the output'} was not written."
    # The second is how `Path.resolve` fails before Python 3.13.
    if isinstance(error, ValueError | OSError) or text.startswith("Symlink loop"):
        return text
    signs = ("allocate", "out of memory", "overflow")
    if isinstance(error, MemoryError) or any(sign in text for sign in signs):
        return f"Out of memory: {(text.splitlines() or ['no reason given'])[0]}"
    return None


def _print_in_any_encoding() -> None:
    """Print other signs where a terminal lacks some, such as a dash under LC_ALL=C."""
    codecs.register_error("highrank", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="highrank")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    from highrank.files import path_text

    assert isinstance(error, UnicodeEncodeError)
    found = path_text(error.object[error.start : error.end])
    escaped = (c.encode("ascii", "backslashreplace").decode() for c in found)
    return "".join(ASCII.get(c, e) for c, e in zip(found, escaped, strict=True)), error.end


def _run(arguments: list[str]) -> None:
    name, *rest = _imported(arguments)
    if arguments == ["--version"]:
        print(f"highrank {__version__}")
    elif name not in COMMANDS:
        from highrank.cli.console import did_you_mean

        if guess := did_you_mean(name, COMMANDS):
            raise ValueError(f"a command must be one of {', '.join(COMMANDS)}, got {name}{guess}")
        _run_one_of({name: _described(text) for name, text in COMMANDS.items()}, arguments)
    else:
        # Encoder–decoders, which read pairs, have options of their own.
        has_pairs = name == "finetune" and any(one.split("=")[0] == "--task" for one in rest)
        module = import_module("highrank.cli.pairs" if has_pairs else f"highrank.cli.{name}")
        if name in GROUPS:
            _run_one_of(getattr(module, GROUPS[name]), rest or ["--help"], name)
        elif name in ("train", "compare"):
            # The preset decides the defaults of all options, so it is read before they are.
            getattr(module, f"run_{name}")(rest)
        else:
            import tyro

            from highrank.cli.console import parse

            command, config = _in_range(getattr(module, name)), (tyro.conf.FlagCreatePairsOff,)
            parse(command, prog=f"highrank {name}", args=rest, config=config)()


def _imported(arguments: list[str]) -> list[str]:
    """The arguments without --import MODULE, for runs with a head of the user's own."""
    if "--import" not in arguments[:-1]:
        return arguments
    from highrank.signatures import import_outside

    place = arguments.index("--import")
    try:
        import_outside(arguments[place + 1])
    except ImportError as error:
        raise ValueError(f"--import must be followed by a module, got {error}") from None
    return _imported(arguments[:place] + arguments[place + 2 :])


def _run_one_of(
    commands: dict[str, Callable[..., Any]], arguments: list[str], group: str | None = None
) -> None:
    import tyro

    from highrank.cli.console import parse

    work = parse(
        {name: _in_range(command) for name, command in commands.items()},
        tyro.extras.subcommand_cli_from_dict,
        prog="highrank" if group is None else f"highrank {group}",
        description=DESCRIPTION if group is None else COMMANDS[group],
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    work()


def _in_range(command: Callable[..., Any]) -> Callable[..., Any]:
    """What makes the command's work of its options; numbers beyond all ranges are refused."""

    @wraps(command)
    def checked(*values: Any, **options: Any) -> Callable[[], Any]:
        from highrank.signatures import check_ranges

        for name, value in options.items():
            # Options in a dataclass stand beside the others.
            check_ranges(value, "" if is_dataclass(value) else name)
        return partial(command, *values, **options)

    return checked


def _described(text: str) -> Callable[[], None]:
    """A command that is only listed."""

    def command() -> None: ...

    command.__doc__ = text
    return command
