"""Options of a class: the arguments of its constructor, with their types, defaults and help.

Heads, backbones and batches are listed as key → "module:Class". What such a class can be told on
the command line, in a configuration and in JSON follows from its constructor alone.
"""

import inspect
import re
import reprlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from highrank.files import checked

# Far beyond what anybody trains: what is larger is a mistake, and is not tried.
LARGEST, LARGEST_FLOAT = 2**31 - 1, 1e18


def load_class(classes: Mapping[str, str], key: str, name: str) -> type[Any]:
    """The class of a key, imported when it is asked for.

    Args:
        classes: key → "module:Class".
        name: what the key is called in an error.
    """
    if key not in classes:
        raise ValueError(f"{name} must be one of {', '.join(classes)}, got {key!r}")
    module, attribute = classes[key].split(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found


def arguments_of(kind: type[Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a class's constructor, by name."""
    found = dict(inspect.signature(kind.__init__).parameters)
    del found["self"]
    return found


def help_of(kind: type[Any]) -> dict[str, str]:
    """The text of each argument under `Args:` in a class's docstring."""
    docstring = inspect.getdoc(kind) or ""
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", docstring, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def checked_options(
    kind: type[Any], options: Mapping[str, Any], given: frozenset[str], name: str
) -> dict[str, Any]:
    """The options as the constructor's types, without those that have its default.

    Args:
        given: arguments that are no options, as they come from elsewhere.
        name: of the group of options, for errors: head.
    """
    arguments = arguments_of(kind)
    known = [argument for argument in arguments if argument not in given]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name}.options must be arguments of {kind.__name__} ({', '.join(known)}), got "
                f"{option}"
            )
    found = {
        option: checked(arguments[option].annotation, value, f"{name}.{option}")
        for option, value in options.items()
    }
    for option, value in found.items():
        _check_range(value, f"{name}.{option}")
    return {option: value for option, value in found.items() if value != arguments[option].default}


def _check_range(value: Any, name: str) -> None:
    """Raise for numbers that are beyond all, alone or in a tuple."""
    if isinstance(value, tuple):
        for item in value:
            _check_range(item, name)
    elif isinstance(value, int | float):
        most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
        if not abs(value) <= most:
            raise ValueError(f"{name} must be at most {most:,}, got {reprlib.repr(value)}")


def construct(kind: type[Any], name: str, *arguments: Any, **options: Any) -> Any:
    """An instance; an error that begins with an argument names the option: model.hidden-sizes.

    Args:
        name: of the group of options.
    """
    try:
        return kind(*arguments, **options)
    except ValueError as error:
        argument, _, rest = str(error).partition(" ")
        if argument not in arguments_of(kind):
            raise
        raise ValueError(f"{name}.{argument.replace('_', '-')} {rest}") from None
