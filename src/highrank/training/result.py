"""From an open session to its result: the training, a budget that includes the test, the test."""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.components import (
    ComponentReport,
    MixtureUse,
    mixture_use,
    model_components,
)
from highrank.data.corpus import Corpus, Split
from highrank.evaluation.check import Finding, quick_check
from highrank.evaluation.static import Evaluation, num_predicted
from highrank.heads.bases.frequency import log_frequencies
from highrank.heads.components.ngram import table_size
from highrank.ngram import TableSize
from highrank.progress import ProgressBar, no_progress
from highrank.training.budget import seconds_of_test
from highrank.training.evaluating import evaluate_in
from highrank.training.outcome import Outcome, Progress, Reason
from highrank.training.session import Session
from highrank.training.signals import listening, stop

# The test is left out if it would take more of the budget.
LARGEST_TEST = 0.5
# A training that waited for its core for more of its time was on a busy machine.
BUSY_FRACTION = 0.2
# A model that is better than token frequencies by no more has learned nothing of contexts.
UNIGRAM_NATS = 0.1

TrainingProgress = Callable[[], AbstractContextManager[Callable[[Progress], None] | None]]


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    run: str
    outcome: Outcome
    num_parameters: int
    table: TableSize | None = None
    """What n-grams add to the parameters."""
    mixture: ComponentReport | None
    """At the start of valid; None without a mixture of softmaxes over one output embedding."""
    use: MixtureUse | None
    """The same in two numbers, also of adaptive mixtures."""
    valid: Evaluation
    """As it was when the best model was saved."""
    test: Evaluation | None
    """None if it was left out."""
    test_batch_size: int = 1
    check: tuple[Finding, ...] | None = None
    """Whether the scores are those of a distribution; None for a head that is one by its form."""
    unigram: float = math.inf
    """Loss on valid of the training split's token frequencies, in nats."""
    waiting_fraction: float | None = None
    """Fraction of the training's time in which other processes had its core; None if unknown."""
    splits: Mapping[str, Split] = field(default_factory=dict)
    """The corpus' splits by name; none for a corpus in memory."""

    @property
    def is_unigram(self) -> bool:
        """Whether the model predicts valid hardly better than token frequencies do."""
        return self.valid.nats > self.unigram - UNIGRAM_NATS

    @property
    def is_busy(self) -> bool:
        """Whether other processes took much of the machine while it trained."""
        return self.waiting_fraction is not None and self.waiting_fraction > BUSY_FRACTION

    def evaluations(self, valid_batch_size: int) -> list[tuple[str, Evaluation, int]]:
        """The splits that were evaluated, with their batch sizes."""
        found = [("valid", self.valid, valid_batch_size)]
        return found if self.test is None else [*found, ("test", self.test, self.test_batch_size)]

    def bits_per_byte(self, split: str) -> float | None:
        """All bits over the size of the text in UTF-8; None for a corpus in memory."""
        found = self.valid if split == "valid" else self.test
        if found is None or split not in self.splits:
            return None
        return self.splits[split].bits_per_byte(found.bits)

    def unknown_fraction(self, split: str) -> float | None:
        """The fraction of tokens that are `<unk>`; None for a corpus in memory."""
        return self.splits[split].unknown_fraction if split in self.splits else None

    def _as_json(self, split: str, found: Evaluation) -> dict[str, Any]:
        return {
            "perplexity": found.perplexity,
            **found._asdict(),
            "bits_per_byte": self.bits_per_byte(split),
            "unknown_fraction": self.unknown_fraction(split),
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            **asdict(self.outcome),
            "waiting_fraction": self.waiting_fraction,
            "num_parameters": self.num_parameters,
            "table": self.table and asdict(self.table),
            "specialisation": self.use and self.use.specialisation,
            "effective_components": self.use and self.use.effective_components,
            "mixture_state": None if self.mixture is None else self.mixture.state,
            "valid": self._as_json("valid", self.valid),
            "test": self.test and self._as_json("test", self.test),
            "test_batch_size": self.test_batch_size,
            "check": self.check and [asdict(finding) for finding in self.check],
        }


def finish(
    session: Session,
    test: NDArray[np.integer] | None,
    outcome: Outcome,
    progress: ProgressBar = no_progress,
    test_batch_size: int = 1,
) -> TrainingResult:
    """Evaluate the run's best model, and note its losses at the end of the log.

    Args:
        test: the test split; None leaves the test out.
    """
    batch_size = session.config.valid_batch_size
    end_of = session.corpus.sentence_end
    valid = Evaluation(
        outcome.best_valid_loss, num_predicted(len(session.valid), batch_size, end_of)
    )
    end: dict[str, Any] = {"event": "end", "valid_loss": valid.nats}
    if session.clock.budget is not None:
        end["budget"] = session.clock.budget
    found = None
    with session.best_model() as model:
        if test is not None:
            with progress("Evaluating on test") as on_progress:
                found = evaluate_in(
                    session.world, model, test, test_batch_size, on_progress, end_of
                )
            end |= {"test_loss": found.nats}
            end |= {} if test_batch_size == 1 else {"test_batch_size": test_batch_size}
        mixture, use = model_components(model, session.valid), mixture_use(model, session.valid)
        checked = quick_check(model, session.valid)
    if not session.world.first(lambda: end in session.log.read()[-1:]):
        session.note(**end)
        session.save()
    return TrainingResult(
        run=str(session.folder),
        outcome=outcome,
        num_parameters=sum(p.numel() for p in session.model.parameters()),
        table=table_size(session.model),
        mixture=mixture,
        use=use,
        valid=valid,
        test=found,
        test_batch_size=test_batch_size,
        waiting_fraction=waiting_fraction(session),
        check=checked,
        unigram=unigram_loss(session.corpus.token_counts, session.valid),
        splits=session.corpus.header.splits if isinstance(session.corpus, Corpus) else {},
    )


def waiting_fraction(session: Session) -> float | None:
    """Fraction of the training's time in which other processes had its core.

    None with an accelerator or with several processes, for which a training also waits.
    """
    device = next(session.model.parameters()).device
    if device.type != "cpu" or session.world.size > 1:
        return None
    return session.clock.waiting_fraction


def unigram_loss(token_counts: Sequence[int], tokens: NDArray[np.integer]) -> float:
    """The mean loss of the tokens' frequencies, in nats."""
    log_prob = log_frequencies(token_counts, len(token_counts)).numpy()
    return float(-np.bincount(tokens, minlength=len(log_prob)) @ log_prob / len(tokens))


class Interrupted(Exception):
    """A signal ended the training or the test; the run is saved.

    Args:
        number: of the signal.
        is_in_test: whether the training was over.
    """

    def __init__(self, number: int, is_in_test: bool) -> None:
        super().__init__(number, is_in_test)
        self.number, self.is_in_test = number, is_in_test


def set_budget(
    session: Session, budget: float, test: NDArray[np.integer] | None, test_batch_size: int
) -> float | None:
    """Let a session end in time, the test included.

    Returns the seconds that the test would take if that is too much of the budget: it is then to
    be left out. Otherwise None.
    """
    seconds, end = 0.0, session.corpus.sentence_end
    if test is not None:
        seconds = seconds_of_test(session.model, test, test_batch_size, sentence_end=end)
    # Clocks differ: the first process decides.
    seconds = session.world.first(lambda: seconds)
    if seconds > LARGEST_TEST * budget:
        session.clock.set_budget(budget)
        return seconds
    session.clock.set_budget(budget - seconds)
    return None


def train_and_test(
    session: Session,
    test: NDArray[np.integer] | None,
    test_batch_size: int = 1,
    training_progress: TrainingProgress = nullcontext,
    progress: ProgressBar = no_progress,
) -> TrainingResult:
    """Train to the end and test the best model; raises `Interrupted` or `Diverged`.

    Args:
        test: the test split; None leaves the test out.
        training_progress: opens a progress bar for the training.
        progress: opens one for the test.
    """
    with training_progress() as session.on_progress:
        outcome = session.go()
    if outcome.reason is Reason.INTERRUPTED:
        raise Interrupted(session.stop_signal or signal.SIGINT, is_in_test=False)
    try:
        with listening(stop):
            return finish(session, test, outcome, progress, test_batch_size)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        raise Interrupted(number, is_in_test=True) from None
