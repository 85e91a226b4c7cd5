"""The options of a head on the command line: its constructor's arguments, as --head.<argument>."""

import dataclasses
import inspect
from typing import Annotated, Any, Literal

import tyro

from highrank.config import HeadConfig, RunConfig


def with_head_options(config: RunConfig, arguments: list[str]) -> RunConfig:
    """The configuration with the chosen head's own options as fields, for the parser.

    Args:
        arguments: of the command; --head.kind among them decides whose options there are.
    """
    from highrank.heads import HEADS, head_class
    from highrank.heads.bases.arguments import argument_help

    kind = _kind_in(arguments) or config.head.kind
    known = kind if kind in HEADS else config.head.kind
    config = _fitting(config, known, arguments)
    documented = argument_help(head_class(known))
    keys = Literal[tuple(HEADS)]  # type: ignore[valid-type]
    fields: list[Any] = [
        ("kind", keys, known),
        ("options", tyro.conf.Suppress[dict[str, Any]], dataclasses.field(default_factory=dict)),
    ]
    hidden: Any = tyro.conf.Suppress
    fields += [(name, hidden[object], getattr(config.head, name)) for name in _foreign(known)]
    for name, argument in own_arguments(known).items():
        default = config.head.options.get(name, argument.default)
        text = tyro.conf.arg(help=documented.get(name, ""))
        fields.append((name, Annotated[argument.annotation, text], default))
    Head = dataclasses.make_dataclass("HeadConfig", fields, bases=(HeadConfig,), frozen=True)
    Head.__doc__ = HeadConfig.__doc__
    values = {f.name: getattr(config.head, f.name) for f in dataclasses.fields(HeadConfig)}
    # The parser takes the type of a field from its default.
    return dataclasses.replace(config, head=Head(**(values | {"kind": known, "options": {}})))


def plain_config(parsed: RunConfig) -> RunConfig:
    """The configuration that the parser filled in, with what differs from defaults as options."""
    values = {f.name: getattr(parsed.head, f.name) for f in dataclasses.fields(HeadConfig)}
    own = own_arguments(parsed.head.kind)
    found = {name: getattr(parsed.head, name, own[name].default) for name in own}
    values["options"] = {name: found[name] for name in own if found[name] != own[name].default}
    return dataclasses.replace(parsed, head=HeadConfig(**values))


def own_arguments(kind: str) -> dict[str, inspect.Parameter]:
    """The arguments of a head that every run may choose and no other field gives."""
    from highrank.build import GIVEN
    from highrank.heads import head_arguments

    taken = {*GIVEN, *(field.name for field in dataclasses.fields(HeadConfig))}
    return {
        name: argument
        for name, argument in head_arguments(kind).items()
        if name not in taken and argument.default is not inspect.Parameter.empty
    }


def _foreign(kind: str) -> list[str]:
    """Fields that every run has and that mean nothing to this head."""
    from highrank.heads import head_arguments

    known = head_arguments(kind)
    return [name for name in ("num_components", "dropout", "activation") if name not in known]


def _fitting(config: RunConfig, kind: str, arguments: list[str]) -> RunConfig:
    """The configuration for a head of this kind: its K if the preset's head has no components."""
    from highrank.heads import head_class

    given = {a.split("=")[0].removeprefix("--head.").replace("-", "_") for a in arguments}
    for name in _foreign(kind):
        if name in given:
            raise ValueError(
                f"--head.{name.replace('_', '-')} must be left out for --head.kind {kind}, got one"
            )
    if kind == config.head.kind:
        return config
    head = config.head
    if "num_components" in _foreign(head.kind):
        num_components = head_class(kind).default_components
        head = dataclasses.replace(head, num_components=num_components)
    return dataclasses.replace(config, head=head)


def _kind_in(arguments: list[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith("--head.kind="):
            return argument.removeprefix("--head.kind=")
        if argument == "--head.kind" and index + 1 < len(arguments):
            return arguments[index + 1]
    return None
