"""What a finished run has come to: its best model on valid and test."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.components import specialisation
from highrank.evaluation.static import Evaluation, ProgressBar, evaluate, no_progress
from highrank.run import load
from highrank.training.loop import Outcome, Run


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    run: str
    outcome: Outcome
    num_parameters: int
    specialisation: float | None
    """I(component; token) on valid, in nats; None without a mixture of softmaxes."""
    valid: Evaluation
    """As it was when the best model was saved."""
    test: Evaluation

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            **asdict(self.outcome),
            "num_parameters": self.num_parameters,
            "specialisation": self.specialisation,
            "valid": {"perplexity": self.valid.perplexity, **self.valid._asdict()},
            "test": {"perplexity": self.test.perplexity, **self.test._asdict()},
        }


def finish(
    run: Run, test: NDArray[np.integer], outcome: Outcome, progress: ProgressBar = no_progress
) -> TrainingResult:
    """Evaluate the run's best model, and note its losses at the end of the log.

    Args:
        test: the test split.
    """
    batch_size = run.trainer.config.valid_batch_size
    num_tokens = (len(run.valid) // batch_size - 1) * batch_size
    valid = Evaluation(outcome.best_valid_loss, num_tokens)
    model, _ = load(run.folder, str(run.trainer.device))
    with progress("Evaluating on test") as on_progress:
        found = evaluate(model, test, batch_size=1, on_progress=on_progress)
    if run.log.read()[-1]["event"] != "end":
        run.note(event="end", valid_loss=valid.nats, test_loss=found.nats)
        run.save()
    return TrainingResult(
        run=str(run.folder),
        outcome=outcome,
        num_parameters=sum(p.numel() for p in run.trainer.model.parameters()),
        specialisation=specialisation(model, run.valid),
        valid=valid,
        test=found,
    )
