"""The harness of all benchmarks: variants that take turns, and a fresh process each for memory.

Machines drift: they warm up, and others use them. So variants alternate round after round, the
best round counts, and what is reported are ratios of numbers from the same run.

As a program (`python -m …bench.harness`) it is the process in which memory is measured: it reads
pickled arguments from standard input and writes one line of JSON.
"""

import ctypes
import gc
import json
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from highrank.environment import Environment

CHILD = [sys.executable, "-m", "highrank.studies.bench.harness"]

Prepare = Callable[[], Callable[[], Any]]
OnProgress = Callable[[float, str], None]
"""Called with the fraction of the work done and what is being done."""


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
    """What a reader should know of it in this run."""
    skip: str | None = None
    """Why it cannot take part here."""


@dataclass(frozen=True)
class Peak:
    num_bytes: int | None
    """Peak memory of the process during the work, above what it was before; None if unknown."""
    failure: str | None = None
    """What ended the process early."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One variant. What could not be measured is None, and `failure` has the reason."""

    name: str
    note: str
    value: float | None
    """What the work returned: the same from all variants that compute the same thing."""
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
class BenchResult:
    """What the results of all benchmarks have."""

    rounds: int
    elapsed: float
    """Seconds."""
    environment: Environment


def compare(
    variants: Sequence[Variant],
    *,
    rounds: int,
    baselines: Sequence[str],
    check: Callable[[dict[str, Any]], Mapping[str, str]] = lambda values: {},
    on_progress: OnProgress = silent,
) -> tuple[Measurement, ...]:
    """Measure all variants: first the memory of each, then their times, in turns.

    What ended the process of its memory measurement is not tried again in this one.

    Args:
        baselines: names of the variants to whose time and memory ratios are taken.
        check: called before times are taken, with what each variant's work returned. It raises
            if they do not agree, and returns notes on some of them.
    """
    check_rounds(rounds)
    able = [variant for variant in variants if variant.skip is None]
    begin = counter(on_progress, (2 + rounds) * len(able))
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
    """Rotated by one each round, and backwards every second: nobody keeps a place."""
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


def part(on_progress: OnProgress, low: float, high: float, title: str = "") -> OnProgress:
    """For a part of the work: its fractions 0 … 1 are the whole's `low` … `high`."""
    return lambda fraction, text: on_progress(low + fraction * (high - low), title + text)


def counter(on_progress: OnProgress, total: float) -> Callable[..., None]:
    """A function to call with a text, and a cost unless it is 1, when a piece of work begins."""
    done = 0.0

    def begin(text: str, cost: float = 1.0) -> None:
        nonlocal done
        on_progress(done / total, text)
        done += cost

    return begin


def peak_memory(prepare: Prepare, warm_up: Prepare | None = None) -> Peak:
    """The memory that `prepare()()` needs beyond what is there after `prepare()`.

    It is measured in a fresh process: what ran before leaves no trace. See `Variant` for the
    arguments.
    """
    arguments = pickle.dumps((prepare, warm_up, torch.get_num_threads()))
    pipe = subprocess.PIPE
    # In a session of its own, Ctrl-C does not reach the child: it is ended below, silently.
    with subprocess.Popen(
        CHILD, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as child:
        try:
            out, errors = child.communicate(arguments)
        except BaseException:
            child.kill()
            child.wait()
            raise
    if child.returncode != 0:
        return Peak(None, _failure(child.returncode, errors.decode(errors="replace")))
    return Peak(json.loads(out.splitlines()[-1]))


def _failure(code: int, errors: str) -> str:
    if code == -9:
        return "the process was killed: out of memory?"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"the process ended with code {code}"


def _extra_peak(prepare: Prepare, warm_up: Prepare | None, num_threads: int) -> int | None:
    """Bytes by which doing the work raises this process's memory; None where that is unknown."""
    torch.set_num_threads(num_threads)
    if warm_up is not None:
        # Libraries that are loaded at the first use of a kernel do not count.
        warm_up()()
    work = prepare()
    if sys.platform == "linux":
        _start_from_here()
    before = _memory("VmRSS")
    work()
    after = _memory("VmHWM")
    return None if before is None or after is None else max(0, after - before)


def _start_from_here() -> None:
    """Give freed memory back, so that the work cannot reuse it unseen (glibc); reset the peak."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _memory(field: str) -> int | None:
    """VmRSS: bytes of this process in memory; VmHWM: the most there have been."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return _peak_so_far()
    return int(re.findall(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)[0]) * 1024


def _peak_so_far() -> int | None:
    """Without /proc the peak has to stand for the present, too: what is below it is not seen."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, the others in KiB.
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print("\n" + json.dumps(_extra_peak(*pickle.load(sys.stdin.buffer))))
