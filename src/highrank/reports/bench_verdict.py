"""Who wins `bench loss`: read from the numbers, so that the words stay true when they change."""

from highrank.experiments.bench.loss import WAYS
from highrank.experiments.bench.loss_result import ShapeResult
from highrank.experiments.bench.result import Measurement
from highrank.reports.bench_table import mib, ratio
from highrank.reports.demo_verdict import listed

# What is this close to the lowest is level with it: the machine is not quieter than that.
LEVEL = 0.03
LEVEL_TEXT = "Numbers that differ by less than 3 % are level."


def time_verdict(result: ShapeResult) -> str:
    """Who is fastest, and by how much `fused` is not, where it is not."""
    ways = {m.name: m for m in result.measurements if m.name in WAYS and m.best is not None}
    if "fused" not in ways:
        return f"fused could not be measured: {_why(result, 'fused')}."
    leaders = fastest(list(ways.values()))
    others = sorted(
        (m for m in ways.values() if m.name not in leaders), key=lambda m: m.time_ratios["fused"]
    )
    limit = ratio(ways["fused"].time_ratios.get("limit"))
    if "fused" not in leaders:
        shares = [f"{name} takes {ratio(ways[name].time_ratios['fused'])}" for name in leaders]
        text = f"fused is not the fastest here: {listed(shares)} of its time. It is at {limit} × "
        return text + "the time of the limit."
    verb = "is the fastest way" if leaders == ["fused"] else "are the fastest ways"
    text = f"{listed(leaders)} {verb} to the loss; fused takes {limit} × the time of the limit."
    if others:
        slower = [f"{m.name} {ratio(m.time_ratios['fused'])}" for m in others]
        text += f" In units of its time: {listed(slower)}."
    return text


def memory_verdict(result: ShapeResult) -> str:
    """What `fused` needs, and who needs least and most."""
    ratios = {m.name: m.memory_ratios.get("fused") for m in result.measurements if m.name in WAYS}
    known = {name: value for name, value in ratios.items() if value is not None}
    peak = next((m.peak_bytes for m in result.measurements if m.name == "fused"), None)
    if peak is None or len(known) < 2:
        return "Memory could not be compared."
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    text = f"fused needs {mib(peak)} MiB beyond the inputs"
    if known[least] < 1 - LEVEL:
        text += f"; {least} needs least, {known[least]:.2f} × that"
    else:
        text += ", and no other way needs less"
    if known[most] > 1 + LEVEL:
        text += f"; {most} needs most, {known[most]:.2f} × that"
    return text + "."


def softmax_verdict(result: ShapeResult) -> str:
    """What the mixture costs beyond one softmax of its size."""
    softmax = next((m for m in result.measurements if m.name == "softmax"), None)
    share = None if softmax is None else softmax.time_ratios.get("fused")
    if share is None:
        return ""
    return (
        f"One softmax with as many parameters ({result.shape.softmax_size} numbers for each "
        f"token) takes {share:.2f} of fused’s time: that is the price of the mixture."
    )


def fastest(measurements: list[Measurement]) -> list[str]:
    """The names of the lowest time, and of those level with it; there must be times."""
    times = {m.name: m.best for m in measurements if m.best is not None}
    limit = min(times.values()) * (1 + LEVEL)
    return [name for name, best in times.items() if best <= limit]


def _why(result: ShapeResult, name: str) -> str:
    return next((m.failure for m in result.measurements if m.name == name and m.failure), "unknown")
