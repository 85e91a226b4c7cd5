"""The numbers of `metrics.jsonl` for TensorBoard, in the run's folder: extra `track`."""

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def check_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            "TensorBoard must be installed for --tensorboard: pip install 'highrank[track]'"
        )


def tensorboard_writer(folder: Path, step: int) -> Callable[[Mapping[str, Any]], None]:
    """A function that takes each event of a run, which goes on from this step."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    # What an interrupted run wrote after its checkpoint is hidden.
    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(event: Mapping[str, Any]) -> None:
        if event["event"] != "epoch":
            return
        for split in ("train", "valid"):
            perplexity = math.exp(min(event[f"{split}_loss"], 700.0))
            writer.add_scalar(f"perplexity/{split}", perplexity, event["step"])
        speed = event["tokens"] / event["seconds"]
        writer.add_scalar("tokens per second", speed, event["step"])
        writer.flush()

    return write
