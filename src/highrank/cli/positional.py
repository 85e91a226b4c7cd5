"""The text or preset of a command, wherever it stands among the options."""

import re
from typing import Any

NUMBER = re.compile(r"[\d.]+(e[+-]?\d+)?")


def take_positional(arguments: list[str], *options: Any) -> tuple[str | None, list[str]]:
    """The first argument that is no option and no value of one, and all others.

    Args:
        options: objects with the options' defaults; those of `--train.lr` are in a part of one.
    """
    num_values = 0.0
    for index, word in enumerate(arguments):
        if word.startswith("--"):
            num_values = 0 if "=" in word else _num_values(word.removeprefix("--"), options)
        elif num_values > 0:
            num_values -= 1
        # A further number of an option such as --model.hidden-sizes, or one with a sign.
        elif not word.startswith("-") and not NUMBER.fullmatch(word):
            return word, arguments[:index] + arguments[index + 1 :]
    return None, arguments


def _num_values(option: str, options: tuple[Any, ...]) -> float:
    """The words after an option that belong to it: none of a flag, all if it takes several."""
    *path, name = option.replace("-", "_").split(".")
    for found in options:
        for part in path:
            found = getattr(found, part, None)
        value = getattr(found, name, getattr(found, name.removeprefix("no_"), None))
        if isinstance(value, bool):
            return 0
        if isinstance(value, tuple) and any(isinstance(item, str) for item in value):
            return float("inf")
    return 0 if option == "help" or name.startswith("no_") else 1
