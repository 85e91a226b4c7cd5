"""The machine and the versions: a number without them is not a result.

Where a model can be.

How many threads the matrix multiplies have.
"""

import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from highrank import __version__


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


def _cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def check_device(device: str) -> None:
    """Raise unless torch can put tensors there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch has here, got {reason}") from None


def set_threads(threads: int | None) -> None:
    """None leaves it to torch, which takes all cores."""
    import torch

    if threads is None:
        return
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)


def install_hint(extra: str) -> str:
    """The command that installs an extra: the package is on no index."""
    return f"pip install '.[{extra}]' (in highrank's checkout)"
