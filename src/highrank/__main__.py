"""The command `highrank`, also as `python -m highrank`: what must happen before torch is loaded."""

import os
import sys
from importlib.util import find_spec

from highrank.environment import install_hint

# The extra `cli`. A run that lacked matplotlib would otherwise train first and then fail to draw.
PACKAGES = ("rich", "tyro", "matplotlib", "jinja2", "scipy")


def main() -> None:
    """Load the commands and run one."""
    _check_packages()
    if "OMP_WAIT_POLICY" not in os.environ:
        # A thread of torch's that waits for the other spins before it sleeps. By default for so
        # long that beside another busy process a step takes about 1.5 times as long; a thousand
        # turns cost nothing measurable on idle cores (docs/log.md). Only GNU's OpenMP reads this.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from highrank.cli.main import main as run
    except KeyboardInterrupt:
        print("highrank: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


def _check_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return
    names = "rich and tyro" if {"rich", "tyro"} & set(missing) else " and ".join(missing)
    print(f"highrank: the command needs {names}: {install_hint('cli')}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
