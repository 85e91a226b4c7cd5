"""The package transformers: imported when it is needed, without its progress bars and warnings."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from highrank.environment import install_hint

# As the extra `hf` has it.
LEAST_VERSION = "5.22"


def check_installed(purpose: str) -> None:
    """Raise ValueError with the command that installs transformers, unless it is new enough.

    Args:
        purpose: what it is needed for, after "to".
    """
    if find_spec("transformers") is None:
        raise ValueError(f"transformers must be installed to {purpose}: run {install_hint('hf')}")
    # Transformers itself needs it.
    from packaging.version import Version

    found = version("transformers")
    if Version(found) < Version(LEAST_VERSION):
        raise ValueError(
            f"transformers must be {LEAST_VERSION} or newer to {purpose}, got {found}: run "
            f"{install_hint('hf')}"
        )


@contextmanager
def quiet_transformers(purpose: str) -> Iterator[Any]:
    """Yield the package: a command has a progress bar and messages of its own."""
    check_installed(purpose)
    import transformers

    logging = transformers.utils.logging
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()
