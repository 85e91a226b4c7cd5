"""`metrics.jsonl`: one line per event, appended; a resumed run cuts it back to its checkpoint."""

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """An append-only file of JSON lines whose length is part of the checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def length(self) -> int:
        """In bytes."""
        return self.path.stat().st_size

    def cut(self, length: int) -> None:
        """Forget what was written after the checkpoint."""
        os.truncate(self.path, length)

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]
