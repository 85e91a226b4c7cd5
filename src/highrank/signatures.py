"""Options of a class: the arguments of its constructor, with their types, defaults and help.

Heads, backbones and batches are listed as key → "module:Class". The options of such a class on
the command line, in a configuration and in JSON follow from its constructor alone.
"""

import dataclasses
import inspect
import math
import os
import re
import reprlib
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, get_args

from highrank.files import checked

# Far beyond what anybody trains: what is larger is a mistake, and is not tried.
LARGEST, LARGEST_FLOAT = 2**31 - 1, 1e38
# Options with a limit of their own, wherever they are.
MOST = {
    "seed": 2**64 - 1,
    "seeds": 1_000,
    "components": 1_024,
    "num_components": 1_024,
    "tokens": 2**62,
    "chunk_bytes": 2**62,
}
# A line, or several, of a docstring's `Args:`.
ARGUMENT = re.compile(r"^ {4}((?:\w+, )*\w+): (.*(?:\n {8}.*)*)", flags=re.MULTILINE)


def load_class(classes: Mapping[str, str], key: str, name: str) -> type[Any]:
    """The class of a key, imported when it is asked for.

    Args:
        classes: key → "module:Class".
        key: one of the classes; or "module:Class" from outside, which is not imported here.
        name: what the key is called in an error.
    """
    if ":" in key:
        return _outside_class(key, name)
    if key not in classes:
        raise ValueError(f"{name} must be one of {', '.join(classes)}, got {key!r}")
    module, attribute = classes[key].split(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found


def import_kind(kind: str) -> None:
    """Import the module of a "module:Class" from outside the package, which the user has named."""
    module, colon, _ = kind.partition(":")
    if colon:
        try:
            import_outside(module)
        except ImportError as error:
            raise ValueError(f"{kind} must have an importable module, got {error}") from None


def import_outside(module: str) -> None:
    """Import a module that the user has named, which may be a file in the current folder.

    The folder comes last: no file in it can stand before an installed package. Processes that are
    spawned later have it, too.
    """
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    import_module(module)


def _outside_class(path: str, name: str) -> type[Any]:
    """A class of a module that is imported already: a file may have named it."""
    module, _, attribute = path.partition(":")
    if module not in sys.modules:
        raise ValueError(
            f"{path} must be imported before, as the files of a run import nothing: name it again, "
            f"with --import {module}, or import it in Python"
        )
    found = getattr(sys.modules[module], attribute, None)
    if not isinstance(found, type):
        raise ValueError(f"{name} must be a class, got {path}")
    return found


def arguments_of(kind: type[Any]) -> dict[str, inspect.Parameter]:
    """All arguments of a class's constructor, by name, its own first.

    A subclass may take `**options: Unpack[…]` for those of its base, or of the classes that it
    names as `options_of`; `**options: Any` are all of the latter.
    """
    found = _own_arguments(kind)
    rest = next((p for p in found.values() if p.kind is p.VAR_KEYWORD), None)
    if rest is None:
        return found
    del found[rest.name]
    if not (options := get_args(rest.annotation)):
        parts = getattr(kind, "options_of", ())
        return {n: p for part in parts for n, p in arguments_of(part).items()} | found
    known: dict[str, inspect.Parameter] = {}
    for source in reversed(_sources(kind)):
        known |= _own_arguments(source)
    keyword = inspect.Parameter.KEYWORD_ONLY
    # A TypedDict lists the names; its bases' constructors have the defaults.
    return found | {name: known[name].replace(kind=keyword) for name in options[0].__annotations__}


def help_of(kind: type[Any]) -> dict[str, str]:
    """The text of each argument under `Args:`, of the class or of the nearest base."""
    found: dict[str, str] = {}
    for source in reversed(_sources(kind)):
        for names, text in ARGUMENT.findall(inspect.cleandoc(vars(source).get("__doc__") or "")):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _sources(kind: type[Any]) -> tuple[type[Any], ...]:
    """The classes whose constructors are given the arguments, the nearest first."""
    parts = getattr(kind, "options_of", ())
    return (*kind.__mro__, *(source for part in parts for source in _sources(part)))


def _own_arguments(kind: type[Any]) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(kind.__init__).parameters.items())[1:])


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
    check_ranges(found, name)
    return {option: value for option, value in found.items() if value != arguments[option].default}


def check_ranges(value: Any, name: str = "") -> None:
    """Raise ValueError for numbers too large to be tried, alone or in a dataclass, dict or tuple.

    Args:
        name: of the option that has the value, or of the group of options.
    """
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            # A kind's own options stand beside the fields that every kind has.
            inner = str(key).removesuffix("options").rstrip("_")
            check_ranges(item, ".".join(filter(None, (name, inner))))
    elif isinstance(value, list | tuple):
        for item in value:
            check_ranges(item, name)
    elif isinstance(value, int | float):
        _check_range(value, name)


def _check_range(value: float, name: str) -> None:
    option, limit = name.replace("_", "-"), LARGEST if isinstance(value, int) else LARGEST_FLOAT
    most = MOST.get(name.rpartition(".")[2], limit)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{option} must be a finite number, got {value}")
    if abs(value) > most:
        size = " in magnitude" if value < 0 else ""
        raise ValueError(f"{option} must be at most {most:,}{size}, got {reprlib.repr(value)}")


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
