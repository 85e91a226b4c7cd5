"""The package transformers: imported when it is needed, without its progress bars and warnings."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from highrank.environment import install_hint

# Older ones have other names for half of what is used here.
LEAST_MAJOR = 5


def check_installed(purpose: str) -> None:
    """Raise the command that installs it.

    Args:
        purpose: what it is needed for, after "to".
    """
    if find_spec("transformers") is None:
        raise ValueError(f"transformers must be installed to {purpose}: run {install_hint('hf')}")
    found = version("transformers")
    if int(found.split(".")[0]) < LEAST_MAJOR:
        raise ValueError(
            f"transformers must be {LEAST_MAJOR} or newer to {purpose}, got {found}: run "
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
