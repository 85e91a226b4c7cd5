"""What a benchmark measured: plain data, made by `harness.py`, shown by `reports/bench.py`.

Peak memory of a piece of work, each in a fresh process: what ran before leaves no trace.

The harness of all benchmarks: variants that take turns, and one process each for memory.

Machines drift: they warm up, and others use them. So variants alternate round after round, the
best round counts, and what is reported are ratios of numbers from the same run.
"""

import gc
import json
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from highrank.studies.bench.child import Task


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One variant. What could not be measured is None, and `failure` says why."""

    name: str
    note: str
    """What a reader should know of it in this run; empty if nothing."""
    value: float | None
    """What the work returned: the same from all variants that compute the same thing."""
    times: tuple[float, ...]
    """Seconds, one for each round."""
    best: float | None
    """The lowest of `times`."""
    peak_bytes: int | None
    """Peak memory of the process during the work, above what it was before."""
    time_ratios: dict[str, float]
    """`best` divided by that of each baseline."""
    memory_ratios: dict[str, float]
    """`peak_bytes` divided by that of each baseline."""
    failure: str | None
    """Why it was skipped, or what ended it."""


CHILD = [sys.executable, "-m", "highrank.studies.bench.child"]


@dataclass(frozen=True)
class Peak:
    num_bytes: int | None
    """Above the inputs; None where it cannot be read."""
    failure: str | None = None
    """What ended the process, if it did not get to the end."""


def peak_memory(
    prepare: Callable[[], Callable[[], Any]],
    warm_up: Callable[[], Callable[[], Any]] | None = None,
) -> Peak:
    """The memory that `prepare()()` needs beyond what is there after `prepare()`.

    Args:
        prepare: makes the inputs and returns the work; a function of a module, or a `partial` of
            one, so that the process can import it.
        warm_up: the same for a tiny case, run first: libraries are loaded then.
    """
    task = pickle.dumps(Task(prepare, warm_up, torch.get_num_threads()))
    # In a session of its own, Ctrl-C does not reach the child: it is ended below, without a word.
    child = subprocess.Popen(
        CHILD,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        try:
            out, errors = child.communicate(task)
        except BaseException:
            child.kill()
            child.wait()
            raise
    if child.returncode != 0:
        return Peak(None, _failure(child.returncode, errors.decode(errors="replace")))
    return Peak(json.loads(out.decode().splitlines()[-1])["peak_bytes"])


def _failure(code: int, errors: str) -> str:
    if code == -9:
        return "the process was killed: out of memory?"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"the process ended with code {code}"


OnProgress = Callable[[float, str], None]
Prepare = Callable[[], Callable[[], Any]]


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
    """What a reader should know of it."""
    skip: str | None = None
    """Why it cannot take part here."""


def compare(
    variants: Sequence[Variant],
    *,
    rounds: int,
    baselines: Sequence[str],
    check: Callable[[dict[str, Any]], Mapping[str, str]] | None = None,
    with_memory: bool = True,
    on_progress: OnProgress | None = None,
) -> tuple[Measurement, ...]:
    """Measure all variants: first the memory of each, then their times, in turns.

    What ended the process of its memory measurement is not tried again in this one.

    Args:
        baselines: names of the variants to whose time and memory ratios are taken.
        check: called before times are taken, with what each variant's work returned. It raises
            if they do not agree, and returns notes on some of them.
        on_progress: called with the share of the work done and what is being done.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    able = [variant for variant in variants if variant.skip is None]
    show = _counter(on_progress, total=(2 if with_memory else 1) * len(able) + rounds * len(able))
    peaks: dict[str, Peak] = {}
    for variant in able if with_memory else ():
        show(f"memory of {variant.name}")
        peaks[variant.name] = peak_memory(variant.prepare, variant.warm_up)
    alive = [c for c in able if c.name not in peaks or peaks[c.name].failure is None]
    works, values = {}, {}
    for variant in alive:
        show(f"warm-up of {variant.name}")
        works[variant.name] = variant.prepare()
        values[variant.name] = works[variant.name]()
    notes = check(values) if check is not None else {}
    times = take_times(works, rounds, lambda name: show(f"time of {name}"))
    measurements = [
        _measurement(c, values.get(c.name), times.get(c.name, ()), peaks.get(c.name), notes)
        for c in variants
    ]
    return with_ratios(measurements, baselines)


def take_times(
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    on_start: Callable[[str], None] = lambda name: None,
) -> dict[str, tuple[float, ...]]:
    """Seconds that each piece of work takes, round by round."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for index in range(rounds):
        for name in turn(list(works), index):
            on_start(name)
            gc.collect()
            start = time.perf_counter()
            works[name]()
            times[name].append(time.perf_counter() - start)
    return {name: tuple(elapsed) for name, elapsed in times.items()}


def turn(names: list[str], index: int) -> list[str]:
    """Rotated by one each round, and backwards every second: nobody keeps a place."""
    shift = index % len(names) if names else 0
    order = names[shift:] + names[:shift]
    return order[::-1] if index % 2 else order


def with_ratios(
    measurements: Sequence[Measurement], baselines: Sequence[str]
) -> tuple[Measurement, ...]:
    """The measurements, with the ratios to those of them that are baselines."""
    times = {m.name: m.best for m in measurements if m.name in baselines}
    peaks = {m.name: m.peak_bytes for m in measurements if m.name in baselines}
    return tuple(
        replace(m, time_ratios=_ratios(m.best, times), memory_ratios=_ratios(m.peak_bytes, peaks))
        for m in measurements
    )


def part(on_progress: OnProgress | None, low: float, high: float) -> OnProgress | None:
    """For a part of the work: its shares 0 … 1 are the whole's `low` … `high`."""
    if on_progress is None:
        return None
    return lambda share, text: on_progress(low + share * (high - low), text)


def _measurement(
    variant: Variant,
    value: Any,
    times: tuple[float, ...],
    peak: Peak | None,
    notes: Mapping[str, str],
) -> Measurement:
    return Measurement(
        name=variant.name,
        note="; ".join(filter(None, (variant.note, notes.get(variant.name)))),
        value=None if value is None else float(value),
        times=times,
        best=min(times, default=None),
        peak_bytes=None if peak is None else peak.num_bytes,
        time_ratios={},
        memory_ratios={},
        failure=variant.skip or (None if peak is None else peak.failure),
    )


def _ratios(value: float | None, baselines: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value / base for name, base in baselines.items() if base and value is not None}


def _counter(on_progress: OnProgress | None, total: int) -> Callable[[str], None]:
    done = 0

    def show(text: str) -> None:
        nonlocal done
        if on_progress is not None:
            on_progress(done / total, text)
        done += 1

    return show
