"""How the help shows an option."""

from typing import Any

import tyro


def unless_given(default: str, metavar: str) -> Any:
    """For an option that is None unless it is given: what happens then."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")
