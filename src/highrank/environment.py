"""The machine and the versions: what numbers depend on, and what this CPU can really do.

torch is imported inside the functions that need it: `__main__` uses this file before torch loads.
"""

import faulthandler
import os
import platform
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from highrank import __version__

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
# Upper bounds below AMX. oneDNN multiplies bfloat16 matrices, but attention in torch goes to MKL,
# which has AMX code of its own. Each library reads its variable once, when it is first used.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"}
PROBE_SECONDS = 60.0
# More than there are cores only costs time, and very many end the process.
MANY_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where and when numbers were measured."""

    highrank: str
    """Version of this package."""
    commit: str | None
    """Of the checkout that holds the package, with "-dirty" if files differ; None elsewhere."""
    torch: str
    python: str
    threads: int
    cpu: str
    platform: str
    date: str
    """UTC."""


def environment() -> Environment:
    """As of now."""
    import torch

    return Environment(
        highrank=__version__,
        commit=_commit(Path(__file__).parent / "__init__.py"),
        torch=str(torch.__version__),
        python=platform.python_version(),
        threads=torch.get_num_threads(),
        cpu=_cpu(),
        platform=platform.platform(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    )


def _commit(file: Path) -> str | None:
    git = ["git", "-C", str(file.parent)]
    # An installed package may lie inside somebody else's checkout: then git does not know the file.
    known = _output([*git, "ls-files", "--error-unmatch", file.name])
    return known and _output(
        [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    )


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu(cpuinfo: Path = CPUINFO) -> str:
    return _first_value(cpuinfo, "model name") or platform.processor() or platform.machine()


def _first_value(file: Path, key: str) -> str:
    """Behind the first line's colon that starts with the key; empty if there is none."""
    try:
        with file.open() as lines:
            found = next((line for line in lines if line.startswith(key)), ":")
    except OSError:
        return ""
    return found.split(":", 1)[1].strip()


def free_memory(meminfo: Path = MEMINFO) -> int | None:
    """Bytes that can be used without swapping; None where Linux does not report them."""
    found = _first_value(meminfo, "MemAvailable").split()
    return int(found[0]) * 1024 if found and found[0].isdigit() else None


def check_device(device: str) -> None:
    """Raise unless torch can put tensors there."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be one that torch has here, got {device} ({reason})"
        ) from None


def set_threads(threads: int | None) -> None:
    """None leaves it to torch, which takes all cores."""
    import torch

    if threads is None:
        return
    check_threads(threads)
    torch.set_num_threads(threads)


def check_threads(threads: int) -> None:
    """Raise unless a machine like this may have so many."""
    most = max(MANY_THREADS, os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise ValueError(f"threads must be between 1 and {most}, got {threads}")


def memory_bytes() -> int | None:
    """Memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@cache
def prepare_bfloat16() -> None:
    """Make torch multiply bfloat16 matrices on this CPU, or raise. Call it before torch computes.

    Some virtual machines advertise AMX, and its first instruction ends the process with SIGILL
    (https://github.com/uxlfoundation/oneDNN/issues/5689). A child process tries it where the CPU
    lists `amx_bf16` and nobody has set ONEDNN_MAX_CPU_ISA. If the child dies, `WITHOUT_AMX` goes
    into the environment of this process and of those that it starts.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        _prepare_lstm()
        return
    advertised = "amx_bf16" in _first_value(CPUINFO, "flags").split()
    if not advertised or _survives(_multiply_bfloat16):
        return
    added = {name: value for name, value in WITHOUT_AMX.items() if name not in os.environ}
    os.environ.update(added)
    if _survives(_multiply_bfloat16):
        return
    for name in added:
        del os.environ[name]
    raise ValueError(
        "bfloat16 must be supported by this CPU, which advertises AMX and ends the process that "
        "uses it: start with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment or, if that "
        "does not help, use --precision float32"
    )


def _prepare_lstm() -> None:
    """Do without oneDNN if torch asks it for an LSTM that its limit forbids.

    torch looks at the CPU, oneDNN at the variable: below AVX512_CORE_BF16 they disagree.
    """
    import torch

    try:
        # Its weights must not move the random numbers of a run.
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        torch.backends.mkldnn.set_flags(False)


def _survives(probe: Callable[[], None]) -> bool:
    """Whether a copy of this process returns from the probe.

    A fork, as torch's own data loader makes it, takes milliseconds. It has what this process has
    loaded, so it also dies where this process has used oneDNN and a variable comes too late.
    """
    from multiprocessing import get_context

    child = get_context("fork").Process(target=_quietly, args=(probe,), daemon=True)
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads; the probe uses no thread but its own.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(PROBE_SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode == 0


def _quietly(probe: Callable[[], None]) -> None:
    """Run it without a traceback and without a core dump if it dies."""
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    probe()


def _multiply_bfloat16() -> None:
    import torch

    torch.set_num_threads(1)
    # torch multiplies up to 16³ without oneDNN.
    one = torch.ones(64, 64, dtype=torch.bfloat16)
    one @ one


def install_hint(extra: str) -> str:
    """The command that installs an extra: the package is on no index."""
    return f"pip install '.[{extra}]' (in highrank's checkout)"
