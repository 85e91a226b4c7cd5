"""What a finished run has come to: its best model on valid and test."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.components import (
    ComponentReport,
    MixtureUse,
    mixture_use,
    model_components,
)
from highrank.evaluation.static import Evaluation, ProgressBar, evaluate, no_progress
from highrank.training.outcome import Outcome
from highrank.training.session import Session


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    run: str
    outcome: Outcome
    num_parameters: int
    mixture: ComponentReport | None
    """At the start of valid; None without a mixture of softmaxes over one output embedding."""
    use: MixtureUse | None
    """The same in two numbers, also of adaptive mixtures."""
    valid: Evaluation
    """As it was when the best model was saved."""
    test: Evaluation | None
    """None if it was left out."""
    test_batch_size: int = 1

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            **asdict(self.outcome),
            "num_parameters": self.num_parameters,
            "specialisation": self.use and self.use.specialisation,
            "effective_components": self.use and self.use.effective_components,
            "mixture_state": None if self.mixture is None else self.mixture.state,
            "valid": {"perplexity": self.valid.perplexity, **self.valid._asdict()},
            "test": self.test and {"perplexity": self.test.perplexity, **self.test._asdict()},
            "test_batch_size": self.test_batch_size,
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
    num_tokens = (len(session.valid) // batch_size - 1) * batch_size
    valid = Evaluation(outcome.best_valid_loss, num_tokens)
    end, found = {"event": "end", "valid_loss": valid.nats}, None
    with session.best_model() as model:
        if test is not None:
            with progress("Evaluating on test") as on_progress:
                found = evaluate(model, test, test_batch_size, on_progress=on_progress)
            end |= {"test_loss": found.nats}
            end |= {} if test_batch_size == 1 else {"test_batch_size": test_batch_size}
        mixture, use = model_components(model, session.valid), mixture_use(model, session.valid)
    if end not in session.log.read()[-1:]:
        session.note(**end)
        session.save()
    return TrainingResult(
        run=str(session.folder),
        outcome=outcome,
        num_parameters=sum(p.numel() for p in session.model.parameters()),
        mixture=mixture,
        use=use,
        valid=valid,
        test=found,
        test_batch_size=test_batch_size,
    )
