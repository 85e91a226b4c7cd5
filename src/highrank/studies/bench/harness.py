"""The harness of all benchmarks: variants that take turns, and a fresh process each for memory.

Machines drift: they warm up, and others use them. So variants alternate round after round, the
best round counts, and what is reported are ratios of numbers from the same run.
"""

import contextlib
import ctypes
import gc
import itertools
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from highrank.environment import Environment, environment
from highrank.progress import OnProgress

Prepare = Callable[[], Callable[[], Any]]


def silent(fraction: float, text: str) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to do the work."""

    name: str
    prepare: Prepare
    """Makes the inputs, from a seed, and returns a function that does the work once. It must be a
    function of a module, or a `partial` of one: another process imports it."""
    warm_up: Prepare | None = None
    """The same for a tiny case; it is run before memory is measured."""
    note: str = ""
    """A remark on this run."""
    skip: str | None = None
    """Why it cannot take part here."""


def make_variants(
    prepare: Callable[..., Callable[[], Any]],
    names: Iterable[str],
    size: tuple[Any, ...],
    tiny_size: tuple[Any, ...],
) -> list[Variant]:
    """Variants whose work is `prepare(name, *size)`."""
    return [
        Variant(
            name=name,
            prepare=partial(prepare, name, *size),
            warm_up=partial(prepare, name, *tiny_size),
        )
        for name in names
    ]


@dataclass(frozen=True)
class Peak:
    num_bytes: int | None
    """Peak memory of the process during the work, above what it was before; None if unknown."""
    failure: str | None = None
    """The reason why the process ended early."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One variant. What could not be measured is None, and `failure` has the reason."""

    name: str
    note: str
    value: float | None
    """The result of the work: the same for all variants that compute the same thing."""
    times: tuple[float, ...]
    """Seconds, one for each round."""
    best: float | None
    """The lowest of `times`."""
    peak_bytes: int | None
    time_ratios: dict[str, float]
    """`best` divided by that of each baseline."""
    memory_ratios: dict[str, float]
    """`peak_bytes` divided by that of each baseline."""
    failure: str | None
    """Why it was skipped, or what ended it."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Variants that do the same work."""

    name: str
    measurements: tuple[Measurement, ...]
    numbers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Further numbers by variant, under the title of their column."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    title: str
    method: str
    """The work, in sentences."""
    baselines: tuple[str, ...]
    """Ratios of time are to these variants, ratios of memory to the last."""
    rounds: int
    groups: tuple[Group, ...]
    elapsed: float
    """Seconds."""
    environment: Environment = field(default_factory=environment)


def measure(
    groups: Mapping[str, Sequence[Variant]],
    *,
    title: str,
    method: str,
    baselines: Sequence[str],
    rounds: int,
    check: Callable[[str, dict[str, Any]], Mapping[str, str]] = lambda group, values: {},
    on_progress: OnProgress = silent,
) -> BenchResult:
    """Measure all variants of each group: first the memory of each, then their times, in turns.

    What ended the process of its memory measurement is not tried again in this one.

    Args:
        baselines: names of the variants to whose time and memory ratios are taken.
        check: called before times are taken, with the name of a group and what each variant's
            work returned. It raises if they do not agree, and returns notes on some of them.
    """
    check_rounds(rounds)
    start = time.monotonic()
    begin = counter(on_progress, (2 + rounds) * sum(map(len, groups.values())))
    found = tuple(
        Group(
            name=name,
            measurements=_compare(variants, baselines, rounds, partial(check, name), begin),
        )
        for name, variants in groups.items()
    )
    return BenchResult(
        title=title,
        method=method,
        baselines=tuple(baselines),
        rounds=rounds,
        groups=found,
        elapsed=time.monotonic() - start,
    )


def _compare(
    variants: Sequence[Variant],
    baselines: Sequence[str],
    rounds: int,
    check: Callable[[dict[str, Any]], Mapping[str, str]],
    begin: Callable[[str], None],
) -> tuple[Measurement, ...]:
    able = [variant for variant in variants if variant.skip is None]
    peaks = {}
    for variant in able:
        begin(f"memory of {variant.name}")
        peaks[variant.name] = peak_memory(variant.prepare, variant.warm_up)
    works, values = {}, {}
    for variant in able:
        if peaks[variant.name].failure is None:
            begin(f"warm-up of {variant.name}")
            works[variant.name] = variant.prepare()
            values[variant.name] = works[variant.name]()
    notes = check(values)
    times = take_times(works, rounds, lambda name: begin(f"time of {name}"))
    noted = [replace(v, note=joined((v.note, notes.get(v.name)))) for v in variants]
    return summarise(noted, baselines, values=values, times=times, peaks=peaks)


def check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")


def take_times(
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    on_start: Callable[[str], None] = lambda name: None,
) -> dict[str, tuple[float, ...]]:
    """Seconds that each piece of work takes, round by round."""
    times: dict[str, tuple[float, ...]] = dict.fromkeys(works, ())
    for index in range(rounds):
        for name in turn(list(works), index):
            on_start(name)
            gc.collect()
            start = time.perf_counter()
            works[name]()
            times[name] += (time.perf_counter() - start,)
    return times


def turn(names: list[str], index: int) -> list[str]:
    """The names rotated by one each round, and backwards every second: none keeps its place."""
    shift = index % len(names) if names else 0
    order = names[shift:] + names[:shift]
    return order[::-1] if index % 2 else order


def summarise(
    variants: Iterable[Variant],
    baselines: Sequence[str],
    *,
    values: Mapping[str, Any],
    times: Mapping[str, tuple[float, ...]],
    peaks: Mapping[str, Peak],
) -> tuple[Measurement, ...]:
    """The measurements of the variants, in their order, from what is known of each by its name."""
    best = {name: min(seconds, default=None) for name, seconds in times.items()}
    memory = {name: peak.num_bytes for name, peak in peaks.items()}
    return tuple(
        Measurement(
            name=variant.name,
            note=variant.note,
            value=None if values.get(variant.name) is None else float(values[variant.name]),
            times=times.get(variant.name, ()),
            best=best.get(variant.name),
            peak_bytes=memory.get(variant.name),
            time_ratios=_ratios(best, variant.name, baselines),
            memory_ratios=_ratios(memory, variant.name, baselines),
            failure=variant.skip or peaks.get(variant.name, Peak(None)).failure,
        )
        for variant in variants
    )


def _ratios(
    numbers: Mapping[str, float | None], name: str, baselines: Sequence[str]
) -> dict[str, float]:
    value, bases = numbers.get(name), {base: numbers.get(base) for base in baselines}
    return {name: value / base for name, base in bases.items() if base and value is not None}


def joined(notes: Iterable[str | None]) -> str:
    return "; ".join(filter(None, notes))


def counter(on_progress: OnProgress, total: int) -> Callable[[str], None]:
    """A function to call with a text when one of `total` pieces of work begins."""
    done = itertools.count()
    return lambda text: on_progress(next(done) / total, text)


def peak_memory(prepare: Prepare, warm_up: Prepare | None = None) -> Peak:
    """The memory that `prepare()()` needs beyond what is there after `prepare()`.

    It is measured in a fresh process: what ran before leaves no trace. See `Variant` for the
    arguments.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    arguments = (theirs, prepare, warm_up, torch.get_num_threads())
    child = spawn.Process(target=_send_peak, args=arguments)
    # Ctrl-C is for this process, which ends its child.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    theirs.close()
    try:
        peak: Peak = ours.recv()
        return peak
    except EOFError:
        child.join()
        code = child.exitcode or 0
        end = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        end += ": out of memory?" if end == "by SIGKILL" else ""
        return Peak(None, f"the process ended {end}")
    finally:
        child.kill()
        child.join()


def _send_peak(
    pipe: Connection, prepare: Prepare, warm_up: Prepare | None, num_threads: int
) -> None:
    """Measure in this process; what libraries print here is not for the user."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    try:
        pipe.send(Peak(_extra_peak(prepare, warm_up, num_threads)))
    except Exception as error:
        pipe.send(Peak(None, traceback.format_exception_only(error)[-1].strip()))


def _extra_peak(prepare: Prepare, warm_up: Prepare | None, num_threads: int) -> int | None:
    """Bytes by which doing the work raises this process's memory; None without Linux's /proc."""
    torch.set_num_threads(num_threads)
    if warm_up is not None:
        # Libraries that are loaded at the first use of a kernel do not count.
        warm_up()()
    work = prepare()
    if sys.platform != "linux":
        return None
    _start_from_here()
    before = _memory("VmRSS")
    work()
    return max(0, _memory("VmHWM") - before)


def _start_from_here() -> None:
    """Give freed memory back, so that the work cannot reuse it unseen (glibc); reset the peak."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _memory(field: str) -> int:
    """VmRSS: bytes of this process in memory; VmHWM: the most there have been."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)[0]) * 1024
