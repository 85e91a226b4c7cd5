"""Arguments of constructors that hand `**options` on: names, types, defaults and help.

A subclass names its own arguments and takes `**options: Unpack[…]` for those of its base, or of the
class that it names as `options_of`.
"""

import inspect
import re
from collections.abc import Mapping
from typing import get_args

ARGUMENT = re.compile(r"^ {4}((?:\w+, )*\w+): (.*(?:\n {8}.*)*)", flags=re.MULTILINE)


def constructor_arguments(cls: type) -> Mapping[str, inspect.Parameter]:
    """All arguments of a class's constructor, by name, its own first."""
    found = _own_arguments(cls)
    rest = next((p for p in found.values() if p.kind is p.VAR_KEYWORD), None)
    if rest is None or not (options := get_args(rest.annotation)):
        return found
    del found[rest.name]
    known: dict[str, inspect.Parameter] = {}
    for source in reversed(_sources(cls)):
        known |= _own_arguments(source)
    kind = inspect.Parameter.KEYWORD_ONLY
    # A TypedDict lists the names; its bases' constructors have the defaults.
    return found | {name: known[name].replace(kind=kind) for name in options[0].__annotations__}


def argument_help(cls: type) -> dict[str, str]:
    """The text of each argument under `Args:`, of the class or of the nearest base."""
    found: dict[str, str] = {}
    for source in reversed(_sources(cls)):
        for names, text in ARGUMENT.findall(inspect.cleandoc(vars(source).get("__doc__") or "")):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _sources(cls: type) -> tuple[type, ...]:
    """The classes whose constructors are given the arguments, the nearest first."""
    given = getattr(cls, "options_of", None)
    return cls.__mro__ if given is None else (*cls.__mro__, *_sources(given))


def _own_arguments(cls: type) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])  # type: ignore[misc]
