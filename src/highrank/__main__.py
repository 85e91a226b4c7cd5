"""The command `highrank`, also as `python -m highrank`: what must happen before torch is loaded."""

import os
import sys


def main() -> None:
    """Load the commands and run one."""
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


if __name__ == "__main__":
    main()
