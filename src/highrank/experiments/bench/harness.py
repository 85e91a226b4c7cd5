"""The harness of all benchmarks: contestants that take turns, and one process each for memory.

Machines drift: they warm up, and others use them. So contestants alternate round after round, the
best round counts, and what is reported are ratios of numbers from the same run.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from highrank.experiments.bench.memory import Peak, peak_memory
from highrank.experiments.bench.result import Measurement

OnProgress = Callable[[float, str], None]
Prepare = Callable[[], Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Contestant:
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
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    baselines: Sequence[str],
    check: Callable[[dict[str, Any]], Mapping[str, str]] | None = None,
    with_memory: bool = True,
    on_progress: OnProgress | None = None,
) -> tuple[Measurement, ...]:
    """Measure all contestants: first the memory of each, then their times, in turns.

    What ended the process of its memory measurement is not tried again in this one.

    Args:
        baselines: names of the contestants to whose time and memory ratios are taken.
        check: called before times are taken, with what each contestant's work returned. It raises
            if they do not agree, and returns notes on some of them.
        on_progress: called with the share of the work done and what is being done.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    able = [contestant for contestant in contestants if contestant.skip is None]
    show = _counter(on_progress, total=(2 if with_memory else 1) * len(able) + rounds * len(able))
    peaks: dict[str, Peak] = {}
    for contestant in able if with_memory else ():
        show(f"memory of {contestant.name}")
        peaks[contestant.name] = peak_memory(contestant.prepare, contestant.warm_up)
    alive = [c for c in able if c.name not in peaks or peaks[c.name].failure is None]
    works, values = {}, {}
    for contestant in alive:
        show(f"warm-up of {contestant.name}")
        works[contestant.name] = contestant.prepare()
        values[contestant.name] = works[contestant.name]()
    notes = check(values) if check is not None else {}
    times = take_times(works, rounds, lambda name: show(f"time of {name}"))
    measurements = [
        _measurement(c, values.get(c.name), times.get(c.name, ()), peaks.get(c.name), notes)
        for c in contestants
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
    contestant: Contestant,
    value: Any,
    times: tuple[float, ...],
    peak: Peak | None,
    notes: Mapping[str, str],
) -> Measurement:
    return Measurement(
        name=contestant.name,
        note="; ".join(filter(None, (contestant.note, notes.get(contestant.name)))),
        value=None if value is None else float(value),
        times=times,
        best=min(times, default=None),
        peak_bytes=None if peak is None else peak.num_bytes,
        time_ratios={},
        memory_ratios={},
        failure=contestant.skip or (None if peak is None else peak.failure),
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
