"""The models that are compared: what each is, and how long a step of it takes."""

import copy
from pathlib import Path
from statistics import median
from typing import Any

from highrank.integrations.huggingface.upgrade import upgrade
from highrank.studies.finetune.settings import LINEAR, SOFTMAX
from highrank.studies.finetune.text import OnProgress
from highrank.studies.finetune.training import ArmTraining, Task

# Of a measurement of time; the first step of each round does not count.
NUM_ROUNDS, NUM_STEPS = 3, 3


def make_variant(base: Any, variant: str, num_components: int, seed: int) -> Any:
    """A copy of the model with a mixture that starts in this way, or with its softmax."""
    model = copy.deepcopy(base)
    # The same loss for all: what differs in time is the mixture.
    if variant == SOFTMAX:
        return upgrade(model, head=SOFTMAX)
    if variant == LINEAR:
        return upgrade(model, num_components=1, start="identity")
    return upgrade(model, num_components=num_components, start=variant, seed=seed)


def step_times(task: Task, base: Any, on_progress: OnProgress) -> dict[str, float | None]:
    """Median seconds of a training step of each variant; None if it has nothing to train.

    They take turns, so that all have the same share of what else the machine does.
    """
    settings = task.settings
    found: dict[str, list[float]] = {variant: [] for variant in settings.variants}
    for _ in range(NUM_ROUNDS):
        for variant, times in found.items():
            on_progress(0.0, f"measuring a step of {variant}")
            model = make_variant(base, variant, settings.num_components, 0)
            training = ArmTraining(task, model, variant, 0, Path(), None)
            for _ in range(NUM_STEPS if training.trained else 0):
                task.check()
                training.train_step()
            times += training.times[1:]
    return {variant: median(times) if times else None for variant, times in found.items()}
