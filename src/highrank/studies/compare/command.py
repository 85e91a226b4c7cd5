"""The command that trains a configuration: a preset, and the options that it does not have."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from inspect import Parameter
from typing import Any

from highrank.build import BATCH_GIVEN, HEAD_GIVEN, MODEL_GIVEN, batches_class
from highrank.config import RunConfig
from highrank.heads import head_class
from highrank.models import backbone_class
from highrank.presets import get
from highrank.presets.dropout import OPTIONS
from highrank.presets.small import fitted
from highrank.signatures import arguments_of

PARTS = {
    "model": (backbone_class, MODEL_GIVEN),
    "head": (head_class, HEAD_GIVEN),
    "batch": (batches_class, BATCH_GIVEN),
}


def train_command(config: RunConfig, num_train: int) -> str:
    """`highrank train` with options such that its run has this configuration.

    Args:
        num_train: tokens of the corpus' training split, to which `train` fits the preset.
    """
    words = ["highrank", "train", "small"]
    # `train` chooses dropouts by the sizes, which may be others than the preset's.
    chosen = {name.replace("-", "_") for name in OPTIONS}
    for name, value, default in _options(config, fitted(get("small"), num_train)):
        words += [] if value == default and name not in chosen else _words(name, value)
    return shlex.join(words)


def _options(config: RunConfig, preset: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """Options by name, with the wanted value and that of the preset."""
    for field in fields(RunConfig):
        value, default = getattr(config, field.name), getattr(preset, field.name)
        if field.name in PARTS:
            yield from _of_part(field.name, value, default)
        elif field.name in ("train", "finetune") and value is not None:
            for one in fields(value):
                before = None if default is None else getattr(default, one.name)
                yield f"{field.name}.{one.name}", getattr(value, one.name), before
        else:
            yield field.name, value, default


def _of_part(name: str, value: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """A part's fields, then the further arguments of its kind."""
    class_of, given = PARTS[name]
    arguments = arguments_of(class_of(value.kind))
    is_same = value.kind == default.kind
    for field in fields(value):
        # A head has only the fields that its constructor takes, and another one its own K.
        is_foreign = name == "head" and field.name not in ("kind", "start_bias", *arguments)
        if field.name != "options" and not is_foreign:
            before = getattr(default, field.name)
            is_own = field.name == "num_components" and not is_same
            yield f"{name}.{field.name}", getattr(value, field.name), None if is_own else before
    taken = {*given, *(field.name for field in fields(value))}
    own = {key: one for key, one in arguments.items() if key not in taken}
    for key, argument in own.items():
        yield f"{name}.{key}", *(_option(part.options, argument) for part in (value, default))


def _option(options: Mapping[str, Any], argument: Parameter) -> Any:
    return options.get(argument.name, argument.default)


def _words(name: str, value: Any) -> list[str]:
    """An option as it is typed; a flag is turned on, or off."""
    path, _, last = name.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        last = last if value else f"no-{last}"
    option = "--" + ".".join(filter(None, (path, last)))
    if isinstance(value, bool):
        return [option]
    return [option, *map(str, value if isinstance(value, list | tuple) else (value,))]
