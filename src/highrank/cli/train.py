"""`highrank train [PRESET|TEXT]`: train a model, evaluate it, and show what came out."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from highrank.cli.console import Threads, parse, plain_console, unless_given
from highrank.config import RunConfig

if TYPE_CHECKING:
    from highrank.cli.options import Source
    from highrank.data.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class Options:
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: Annotated[Path | None, unless_given("a new run", "RUN")] = None
    """Resume this run from its last checkpoint."""
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    """Be done in time, tested and saved: 90s, 20m, 1.5h. Schedules then follow the clock. A run
    that is resumed keeps its budget."""
    tokenizer: Annotated[str | None, unless_given("words", "NAME")] = None
    """Tokens of your text: words, whitespace, characters, or subwords: bpe:8000, unigram:8000."""
    runs: Path = Path("runs")
    """Where runs go: runs/<preset>-<n>."""
    out: Annotated[Path | None, unless_given("the next free one in --runs", "PATH")] = None
    """The run's folder."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    threads: Threads = None
    """Threads of the matrix multiplies, of each process; --processes share all cores unless it is
    given. Part of bit-for-bit equality."""
    processes: Annotated[int | None, unless_given("one, or what torchrun starts", "INT")] = None
    """Processes on this machine that train together, each on its sequences of every batch."""
    shard: Literal["none", "vocabulary", "full"] = "none"
    """What each process has only a part of: nothing, the rows of the output embedding (and of the
    input embedding that it shares), or all parameters, as FSDP2 has it."""
    test_batch_size: int = 1
    """Streams of the test at the end; 1 reads it in order, more are faster."""
    test: Annotated[bool, unless_given("it is done")] = True
    """Leave out the test at the end: `highrank evaluate` measures it later."""
    tensorboard: bool = False
    """Also write the numbers for TensorBoard, into the run's folder."""
    json: bool = False
    """Print the result as JSON."""


def run_train(arguments: list[str]) -> None:
    """Train a preset, `small` if none is given, or a text; options override what either has."""
    from highrank.cli.options import check_options, read_source, resume_command
    from highrank.cli.processes import (
        check_worker,
        follow_launcher,
        is_worker,
        launch,
        telling_lost,
    )
    from highrank.cli.training import show_training, train
    from highrank.report.training import run_text
    from highrank.training.session import Session
    from highrank.training.world import joined

    source = read_source(arguments, Options)
    options = _parse(source)
    if options.processes not in (None, 1) and not is_worker():
        checked, corpus, _ = check_options(options, source)
        folder = _folder(options, source, corpus)
        return launch(options, folder, resume_command(options, folder))
    follow_launcher()
    with joined(options.device) as (world, device), telling_lost():
        world.first(lambda: check_worker(options))
        here = replace(options, device=device)
        checked, corpus, budget = world.first_then_others(lambda: check_options(here, source))
        folder = world.first(lambda: _folder(options, source, corpus))
        text = run_text(checked, corpus, options.budget) + "\n" if options.resume is None else ""
        if world.is_first:
            plain_console(stderr=True).print(f"{text}Run: {folder}")
        world = replace(world, shard=options.shard)
        with (
            telling_lost(folder, resume_command(options, folder)),
            closing(Session(checked, folder, world=world)) as session,
        ):
            result = train(session, options, budget)
            if world.is_first:
                show_training(session, corpus, result, options.json)


def _folder(options: Options, source: "Source", corpus: "Corpus") -> Path:
    """The run's folder: one that was named, or a new one."""
    from highrank.run.folder import new_run

    name = source.preset if source.text is None else corpus.name
    return options.resume or options.out or new_run(options.runs, name)


def _parse(source: "Source") -> Options:
    """The options, with the configuration's values where there are none."""
    from highrank.cli.options import plain_config, with_own_options

    options = parse(
        Options,
        prog=f"highrank train {source.preset}",
        description=f"Train a language model, starting from the preset {source.preset}.\n\n"
        "Another preset comes first: highrank train ptb-mos; see highrank presets\n\n"
        "Or your own text does: highrank train my.txt",
        default=Options(config=with_own_options(source.default, source.options)),
        args=source.options,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    return replace(options, config=plain_config(options.config))
