"""Does a mixture's backward pass pay for rows that carry next to no responsibility?

Small language models, equal but for the rows that their gradients leave out, learn the same text
from the same start, in turns, so that the machine's moods hit all alike. They are compared at equal
tokens and at equal times. Then the time of a step is measured on the mixture that learned exactly.
T time, B sequences, N = T · B tokens, D hidden size, K components, E embedding size.
"""

import copy
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.experiments.cheaper_backward_learner import (
    LanguageModel,
    Learner,
    mean_loss,
    read_text,
)
from highrank.experiments.cheaper_backward_loss import Selection, filtered, sampled
from highrank.experiments.cheaper_backward_result import (
    CheaperBackwardResult,
    ContestantResult,
    Ratio,
    SelectionError,
    Sizes,
)
from highrank.heads import Mixture, MixtureOfSoftmaxes

EXACT = "exact"
TURN_SECONDS = 15.0
NUM_TIME_MARKS = 8
NUM_ROUNDS = 21

OnProgress = Callable[[float, str], None]


def contestants(seed: int) -> dict[str, Selection | None]:
    """How each selects rows; None is the fused loss, with all."""
    generator = torch.Generator().manual_seed(seed)
    return {
        EXACT: None,
        "filtered 0.01": partial(filtered, threshold=0.01),
        "filtered 0.1": partial(filtered, threshold=0.1),
        "sampled 3": partial(sampled, num_kept=3, generator=generator),
    }


def run(
    data: Path,
    seed: int = 0,
    minutes: float = 5.0,
    vocab_size: int | None = None,
    sizes: Sizes | None = None,
    on_progress: OnProgress | None = None,
) -> CheaperBackwardResult:
    """Train all contestants for `minutes` each, in turns, then time their steps.

    Args:
        data: a folder with ptb.train.txt and ptb.valid.txt: words between blanks, lines of text.
        seed: draws the starting point, the dropout and the sampled rows.
        vocab_size: keeps the most frequent words, the others become <unk>. None keeps all.
        on_progress: called with the share of the training done and who had a turn.
    """
    if minutes <= 0:
        raise ValueError(f"minutes must be above 0, got {minutes}")
    start, sizes = time.monotonic(), sizes or Sizes()
    train, valid, vocab_size = read_text(data, vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LanguageModel(vocab_size, sizes)
        learners = {
            name: Learner(copy.deepcopy(model), select, train, valid, sizes)
            for name, select in contestants(seed).items()
        }
        _take_turns(learners, 60 * minutes, on_progress)
        errors = _selection_errors(learners)
        head_times, step_times = _alternate(learners)
    return CheaperBackwardResult(
        seed=seed,
        minutes=minutes,
        vocab_size=vocab_size,
        num_threads=torch.get_num_threads(),
        sizes=sizes,
        elapsed=time.monotonic() - start,
        contestants=tuple(
            ContestantResult(
                name=name,
                selection=errors[name],
                effective_components=_effective_components(learner),
                head_seconds=median(head_times[name]),
                head_ratio=_ratio(head_times[name], head_times[EXACT]),
                step_seconds=median(step_times[name]),
                step_ratio=_ratio(step_times[name], step_times[EXACT]),
                by_time=tuple(learner.by_time),
                by_tokens=tuple(learner.by_tokens),
            )
            for name, learner in learners.items()
        ),
    )


def _take_turns(
    learners: dict[str, Learner], seconds: float, on_progress: OnProgress | None
) -> None:
    turns_per_mark = math.ceil(seconds / NUM_TIME_MARKS / TURN_SECONDS)
    num_turns = NUM_TIME_MARKS * turns_per_mark
    for turn in range(num_turns):
        for i, (name, learner) in enumerate(learners.items(), start=1):
            learner.learn_until(seconds * (turn + 1) / num_turns)
            if (turn + 1) % turns_per_mark == 0:
                learner.by_time.append(learner.evaluate())
            if on_progress is not None:
                on_progress((turn + i / len(learners)) / num_turns, name)


class _Batch(NamedTuple):
    """A mixture at one window of the text, without dropout."""

    head: MixtureOfSoftmaxes
    mixture: Mixture
    target: Tensor  # (T, B)


def _batch(learner: Learner) -> _Batch:
    words, target = learner.next_window()
    learner.model.eval()
    with torch.no_grad():
        mixture = learner.model.head.mixture(learner.model(words, learner.state)[0])
    learner.model.train()
    return _Batch(learner.model.head, Mixture(*(t.requires_grad_() for t in mixture)), target)


def _gradients(batch: _Batch, select: Selection | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of the output embedding, the contexts and the mixture's log-weights."""
    log_weight, context = batch.mixture
    loss = mean_loss(*batch, select)
    weight, context, log_weight = torch.autograd.grad(
        loss, (batch.head.weight, context, log_weight)
    )
    return weight, context, log_weight


def _responsibility(batch: _Batch) -> Tensor:
    """(N, K): the gradient of the log-weights, but for its factor -1 / N."""
    return _gradients(batch, None)[2].flatten(0, -2) * -batch.target.numel()


def _effective_components(learner: Learner) -> float:
    entropy = torch.special.entr(_responsibility(_batch(learner))).sum(-1)  # (N,)
    return math.exp(entropy.mean().item())


def _selection_errors(learners: dict[str, Learner]) -> dict[str, SelectionError]:
    batch = _batch(learners[EXACT])
    responsibility = _responsibility(batch)
    exact_weight, exact_context, _ = _gradients(batch, None)
    errors = {}
    for name, learner in learners.items():
        row_weight = learner.select(responsibility) if learner.select else responsibility
        weight, context, _ = _gradients(batch, learner.select)
        errors[name] = SelectionError(
            kept_share=(row_weight > 0).double().mean().item(),
            weight=_relative_error(weight, exact_weight),
            context=_relative_error(context, exact_context),
        )
    return errors


def _alternate(
    learners: dict[str, Learner],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of the head and of the whole step, in rounds, on the model that learned exactly."""
    exact = learners[EXACT]
    model, state = exact.model, exact.state
    # The same work as in training, and the same weights after it.
    still = torch.optim.AdamW(model.parameters(), lr=0.0)
    words, target = exact.next_window()
    hidden = model(words, state)[0].detach().requires_grad_()  # (T, B, D)
    head_times: dict[str, list[float]] = {name: [] for name in learners}
    step_times: dict[str, list[float]] = {name: [] for name in learners}
    for is_warm in [False] + [True] * NUM_ROUNDS:
        for name, learner in learners.items():
            model.zero_grad()
            hidden.grad = None
            start = time.perf_counter()
            mean_loss(model.head, model.head.mixture(hidden), target, learner.select).backward()
            middle = time.perf_counter()
            model.step(still, learner.select, words, target, state)
            if is_warm:
                head_times[name].append(middle - start)
                step_times[name].append(time.perf_counter() - middle)
    return head_times, step_times


def _relative_error(got: Tensor, want: Tensor) -> float:
    return float(torch.dist(got, want) / want.norm())


def _ratio(times: list[float], of_exact: list[float]) -> Ratio:
    low, middle, high = quantiles(a / b for a, b in zip(times, of_exact, strict=True))
    return Ratio(median=middle, low=low, high=high)
