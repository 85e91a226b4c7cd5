"""`highrank train`: its preset or text, found and checked, and the options of its parts.

Options of backbone, head and batches are the arguments of their constructors, beside the fields
that every run has: --model.hidden-sizes, --head.start-noise, --batch.bptt.
"""

import dataclasses
import inspect
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from highrank import presets
from highrank.cli.console import did_you_mean, plain_console, progress
from highrank.cli.positional import take_positional
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig
from highrank.progress import no_progress

if TYPE_CHECKING:
    from highrank.build import CheckedRun
    from highrank.cli.train import Options
    from highrank.data.corpus import Corpus


class Part(NamedTuple):
    """A part of a configuration that has options of its own kind."""

    config: type[Any]
    kinds: Mapping[str, str] | None
    """All there are; None for heads, which components make endlessly many."""
    class_of: Callable[[str], type[Any]]
    given: frozenset[str]
    """Arguments of the constructor that are no options."""


def parts() -> dict[str, Part]:
    from highrank import build
    from highrank.data import BATCHES
    from highrank.heads import head_class
    from highrank.models import BACKBONES, backbone_class

    return {
        "model": Part(ModelConfig, BACKBONES, backbone_class, build.MODEL_GIVEN),
        "head": Part(HeadConfig, None, head_class, build.HEAD_GIVEN),
        "batch": Part(BatchConfig, BATCHES, build.batches_class, build.BATCH_GIVEN),
    }


def given_options(arguments: list[str]) -> set[str]:
    """Names of the options in a command's arguments: model.hidden-sizes."""
    names = (argument.split("=")[0] for argument in arguments if argument.startswith("--"))
    return {name.removeprefix("--").replace("_", "-") for name in names}


def value_of(option: str, arguments: list[str]) -> str | None:
    """The value of an option among a command's arguments, before these are parsed."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"--{option}="):
            return argument.removeprefix(f"--{option}=")
        if argument == f"--{option}" and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


def with_own_options(config: RunConfig, arguments: list[str]) -> RunConfig:
    """The configuration with the options of the chosen kinds as fields, for the parser.

    Args:
        arguments: of the command; --head.kind and such among them decide whose options there are.
    """
    changed: dict[str, Any] = {}
    config = _fit_network(config, arguments)
    for name, part in parts().items():
        kind = _kind(getattr(config, name).kind, name, arguments)
        if name == "head":
            config = _fit_head(config, kind, arguments)
        changed[name] = _with_fields(getattr(config, name), part, kind)
    return dataclasses.replace(config, **changed)


def _kind(default: str, name: str, arguments: list[str]) -> str:
    """The kind of a part that the arguments choose."""
    kind, kinds = value_of(f"{name}.kind", arguments), parts()[name].kinds
    return kind if kind is not None and (kinds is None or kind in kinds) else default


def _with_fields(value: Any, part: Part, kind: str) -> Any:
    """The part as an instance of a dataclass that has its kind's options as fields."""
    from highrank.signatures import help_of

    texts = help_of(part.class_of(kind))
    kinds: Any = str if part.kinds is None else Literal[tuple(part.kinds)]
    hidden: Any = tyro.conf.Suppress
    fields: list[Any] = [
        ("kind", kinds, kind),
        ("options", hidden[dict[str, Any]], dataclasses.field(default_factory=dict)),
    ]
    fields += [(name, hidden[object], getattr(value, name)) for name in _foreign(part, kind)]
    for name, argument in own_arguments(part, kind).items():
        default = value.options.get(name, argument.default)
        if default is inspect.Parameter.empty:
            default = tyro.MISSING
        # Its flag is --head.no-bias, of which "default: True" would say the contrary.
        hint = "(default: on; this turns it off)" if default is True else None
        text = tyro.conf.arg(help=texts.get(name, ""), help_behavior_hint=hint)
        fields.append((name, Annotated[argument.annotation, text], default))
    if part.config is ModelConfig:
        shared = tyro.conf.arg(
            help="Give input and output an embedding each.",
            help_behavior_hint="(default: they share one)",
        )
        fields.append(("tied", Annotated[bool, shared], value.tied))
    wider = dataclasses.make_dataclass(
        part.config.__name__, fields, bases=(part.config,), frozen=True
    )
    wider.__doc__ = part.config.__doc__
    values = {field.name: getattr(value, field.name) for field in dataclasses.fields(part.config)}
    # The parser takes the type of a field from its default.
    return wider(**(values | {"kind": kind, "options": {}}))


def plain_config(parsed: RunConfig) -> RunConfig:
    """The configuration that the parser filled in, with what differs from defaults as options."""
    from highrank.build import canonical

    changed: dict[str, Any] = {}
    for name, part in parts().items():
        value = getattr(parsed, name)
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(part.config)}
        own = own_arguments(part, value.kind)
        fields["options"] = {option: getattr(value, option) for option in own}
        changed[name] = part.config(**fields)
    return canonical(dataclasses.replace(parsed, **changed))


def own_arguments(part: Part, kind: str) -> dict[str, inspect.Parameter]:
    """The arguments of a constructor that every run may choose and no other field gives."""
    from highrank.signatures import arguments_of

    taken = {*part.given, *(field.name for field in dataclasses.fields(part.config))}
    found = arguments_of(part.class_of(kind))
    # What a head must be given comes from other fields.
    is_head = part.config is HeadConfig
    return {
        name: argument
        for name, argument in found.items()
        if name not in taken and not (is_head and argument.default is inspect.Parameter.empty)
    }


def _foreign(part: Part, kind: str) -> list[str]:
    """Fields that every run has and that mean nothing to a head of this kind."""
    from highrank.signatures import arguments_of

    if part.config is not HeadConfig:
        return []
    known = arguments_of(part.class_of(kind))
    return [name for name in ("num_components", "dropout", "activation") if name not in known]


def _fit_network(config: RunConfig, arguments: list[str]) -> RunConfig:
    """The configuration with the network that the arguments choose, unless they give its sizes."""
    from highrank.presets.backbones import SMALL_SIZES, with_network

    kind = _kind(config.model.kind, "model", arguments)
    sizes = {f"model.{name.replace('_', '-')}" for name in SMALL_SIZES.get(kind, {})}
    return config if sizes & given_options(arguments) else with_network(config, kind)


def _fit_head(config: RunConfig, kind: str, arguments: list[str]) -> RunConfig:
    """The configuration for a head of this kind, with its default K if the preset has none."""
    head, part = config.head, parts()["head"]
    given = given_options(arguments)
    for name in _foreign(part, kind):
        option = f"head.{name.replace('_', '-')}"
        if option in given:
            raise ValueError(f"--{option} must be left out for --head.kind {kind}, got one")
    if kind != head.kind and "num_components" in _foreign(part, head.kind):
        num_components = part.class_of(kind).default_components
        head = dataclasses.replace(head, num_components=num_components)
    return dataclasses.replace(config, head=head)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    preset: str
    default: RunConfig
    """The configuration that options override."""
    text: str | None
    """The path of the user's text."""
    name: str | None
    """The argument that is no option; None if it was left out."""
    options: list[str]
    """The other arguments of the command."""


def read_source(arguments: list[str], defaults: "type[Options]") -> Source:
    """The preset or text among the arguments; with --resume RUN, the run's configuration.

    Args:
        defaults: the other options of the command.
    """
    from highrank.run.configuration import read_config
    from highrank.signatures import import_kind

    if kind := value_of("head.kind", arguments):
        import_kind(kind)
    small = presets.get("small")
    known = {
        name: _with_fields(one := getattr(small, name), part, _kind(one.kind, name, arguments))
        for name, part in parts().items()
    }
    finetune = dataclasses.replace(small.train, warmup_steps=0)
    name, options = take_positional(
        arguments, dataclasses.replace(small, finetune=finetune, **known), defaults
    )
    text = name if name is not None and name not in presets.PRESETS else None
    if text is not None:
        _check_text(text)
    preset = "small" if name is None or text is not None else name
    run = value_of("resume", options)
    default = presets.get(preset) if run is None else read_config(Path(run))
    return Source(preset=preset, default=default, text=text, name=name, options=options)


def _check_text(path: str) -> None:
    """Raise unless there is something at the path that can be a text."""
    from highrank.data.catalog import known_corpus, prepared_folder
    from highrank.run.configuration import is_run

    if not Path(path).exists():
        is_corpus = known_corpus(path) is not None or prepared_folder(path) is not None
        guess = f": did you mean --corpus {path}?" if is_corpus else ""
        guess = guess or did_you_mean(path, presets.PRESETS)
        raise ValueError(
            "the first argument must be the path of a text or a preset of `highrank presets`, got "
            f"{path!r}{guess}"
        )
    if is_run(Path(path)):
        raise ValueError(f"{path} is a run: resume it with `highrank train --resume {path}`")


def check_options(options: "Options", source: Source) -> "tuple[CheckedRun, Corpus, float | None]":
    """Find mistakes before a folder is made; returns the run, its corpus, its budget in seconds."""
    from highrank.build import check_run, check_streams
    from highrank.environment import check_device, set_threads
    from highrank.training.budget import parse_duration
    from highrank.training.log import check_tensorboard
    from highrank.training.sharding import check_sharding
    from highrank.training.world import World

    if source.name is not None and options.resume is not None:
        raise ValueError(f"--resume must come without a preset or a text, got {source.name}")
    budget = None if options.budget is None else parse_duration(options.budget)
    if options.tensorboard:
        check_tensorboard()
    check_device(options.device)
    set_threads(options.threads)
    corpus, config = _find_corpus(options, source)
    checked = check_run(config, corpus, options.device)
    size = World.current().size if options.processes is None else options.processes
    if size < 1:
        raise ValueError(f"processes must be at least 1, got {size}")
    if source.preset == "small" and options.resume is None and budget is not None:
        checked = _sized(checked, corpus, budget, size, source)
    World(size=size).columns(checked.config.batch)
    check_sharding(options.shard, checked, size)
    if options.test:
        num_test = corpus.header.splits["test"].num_tokens
        check_streams("test-batch-size", options.test_batch_size, num_test, "test")
    return checked, corpus, budget


def _find_corpus(options: "Options", source: Source) -> "tuple[Corpus, RunConfig]":
    """The corpus, and the configuration with its name, fitted to it if it is a small preset's."""
    from highrank.cli.processes import finds_prepared
    from highrank.data.catalog import corpus_option
    from highrank.data.prepare import resolve_corpus
    from highrank.presets.small import fitted
    from highrank.run.folder import read_corpus

    config, bar = options.config, no_progress if finds_prepared() else progress
    if options.tokenizer is not None and source.text is None:
        raise ValueError(f"--tokenizer must come with a text, got {options.tokenizer}")
    if options.resume is not None:
        return read_corpus(options.resume, config).prepared, config
    is_other = config.corpus != source.default.corpus
    if is_other and source.text is not None:
        raise ValueError(f"--corpus must come without a text, got {source.text}")
    corpus = resolve_corpus(source.text or config.corpus, bar, options.tokenizer)
    has_budget = options.budget is not None
    if source.preset.startswith("small"):
        num_train = corpus.header.splits["train"].num_tokens
        given = given_options(source.options)
        config = fitted(config, num_train, given, has_budget=has_budget)
    if source.text is None and config.corpus in (corpus.name, str(corpus.path)):
        return corpus, config
    return corpus, dataclasses.replace(config, corpus=corpus_option(corpus))


def _sized(
    run: "CheckedRun", corpus: "Corpus", budget: float, num_processes: int, source: Source
) -> "CheckedRun":
    """The run with sizes that suit its budget, if there is a rule for them; else, why not."""
    from highrank.build import check_run
    from highrank.cli.processes import finds_prepared
    from highrank.presets.dropout import KIND, weights_of
    from highrank.presets.sizing import TRAINING_FRACTION, Speed, sized, timed
    from highrank.training.speed import tokens_per_second

    kind, reason = run.config.model.kind, ""
    if kind != KIND:
        reason = f"the rule is for {KIND}, not for {kind}"
    elif num_processes > 1:
        # Each would measure a speed of its own.
        reason = f"the rule measures the speed of one process, not of {num_processes}"
    if reason:
        if not finds_prepared():
            text = f"The budget does not choose sizes: {reason}. They stay as they are."
            plain_console(stderr=True).print(text)
        return run
    num_train = corpus.header.splits["train"].num_tokens
    given = given_options(source.options)
    seconds = {
        weights_of(one): 1 / tokens_per_second(check_run(one, corpus, run.device), budget)
        for one in timed(run.config, given)
    }
    speed = Speed.through(seconds)
    found = sized(run.config, TRAINING_FRACTION * budget, speed, num_train, given)
    plain_console(stderr=True).print(found.reason)
    return check_run(found.config, corpus, run.device)


def resume_command(options: "Options", folder: Path) -> str:
    from highrank.cli.processes import is_worker

    given = {
        "processes": options.processes,
        "budget": options.budget,
        "threads": options.threads,
    }
    if options.device != "cpu":
        given["device"] = options.device
    if options.shard != "none":
        given["shard"] = options.shard
    if options.test_batch_size != 1:
        given["test-batch-size"] = options.test_batch_size
    parts = [f"--{name} {value}" for name, value in given.items() if value is not None]
    parts += ["--tensorboard"] if options.tensorboard else []
    parts += [] if options.test else ["--no-test"]
    start = "highrank train"
    if is_worker() and options.processes is None:
        start = f"torchrun --nproc-per-node {os.environ['LOCAL_WORLD_SIZE']} -m highrank train"
    return " ".join([f"{start} --resume {shlex.quote(str(folder))}", *parts])
