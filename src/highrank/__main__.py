"""The command `highrank`, also as `python -m highrank`: what must happen before torch is loaded."""

import os
import sys


def main() -> None:
    """Load the commands and run one."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # A thread of torch's that waits for the other spins before it sleeps. By default for so
        # long that on a core which something else needs, all of training takes several times as
        # long; a thousand turns cost nothing on idle cores (docs/log.md has the times).
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        from highrank.cli.main import main as run
    except KeyboardInterrupt:
        print("highrank: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
