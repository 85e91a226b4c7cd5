"""What a run has come to: evaluated, drawn, told."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from highrank.cli.pen import print_samples
from highrank.cli.progress import progress

if TYPE_CHECKING:
    from highrank.data.corpus import Corpus
    from highrank.evaluation.static import Evaluation
    from highrank.training.loop import Outcome, Run

# Below 1, as people read samples; `highrank generate` has all settings.
TEMPERATURE, NUM_SAMPLES = 0.8, 3


class Found(NamedTuple):
    """Of the best model."""

    valid: "Evaluation"
    """As it was when the model was saved."""
    test: "Evaluation"
    specialisation: float | None
    """Of the components on valid, in nats; None without a mixture of softmaxes."""


def evaluate_run(run: "Run", corpus: "Corpus", outcome: "Outcome") -> Found:
    """Evaluate the best model and draw the learning curve."""
    from highrank.analysis.parting import specialisation
    from highrank.build import load
    from highrank.evaluation.static import Evaluation, evaluate
    from highrank.reports.training import learning_curve

    num_columns = run.trainer.config.valid_columns
    num_tokens = (len(run.valid) // num_columns - 1) * num_columns
    valid = Evaluation(outcome.best_valid_loss, num_tokens)
    model, _ = load(run.folder, str(run.trainer.device))
    with progress("Evaluating on test") as on_progress:
        test = evaluate(model, corpus.split("test"), num_columns=1, on_progress=on_progress)
    if run.log.read()[-1]["event"] != "end":
        run.note(event="end", valid_loss=valid.nats, test_loss=test.nats)
        run.save()
    learning_curve(run.log.read(), run.folder / "learning-curve.png")
    return Found(valid, test, specialisation(model, run.valid))


def _parting(nats: float, run: "Run") -> str:
    """Whether the components have parted, and what to do if not."""
    from highrank.analysis.parting import PARTED

    text = f"Which component speaks tells {nats:.3f} nats about the next word (start of valid)."
    if nats >= PARTED:
        return f"{text} More: highrank audit {_quoted(run)}"
    earlier = "grows earlier (--head.grow-at), " if run.trainer.config.head.grow_at else ""
    return (
        f"{text} They have hardly parted: the model is close to one softmax. They may part if the "
        f"mixture {earlier}trains longer, or has smaller embeddings (--model.embedding-size)."
    )


def _quoted(run: "Run") -> str:
    return shlex.quote(str(run.folder))


def as_json(run: "Run", outcome: "Outcome", found: Found) -> dict[str, object]:
    return {
        "run": str(run.folder),
        **dataclasses.asdict(outcome),
        "num_parameters": sum(p.numel() for p in run.trainer.model.parameters()),
        "specialisation": found.specialisation,
        "valid": {"perplexity": found.valid.perplexity, **found.valid._asdict()},
        "test": {"perplexity": found.test.perplexity, **found.test._asdict()},
    }


def tell(run: "Run", corpus: "Corpus", outcome: "Outcome", found: Found) -> None:
    """Perplexities, files, whether components parted, and three samples."""
    from highrank.build import load
    from highrank.generation import Sampling, stream

    console = Console(highlight=False, soft_wrap=True, markup=False)
    for split, score, num_columns in (
        ("valid", found.valid, run.trainer.config.valid_columns),
        ("test ", found.test, 1),
    ):
        console.print(
            f"{split} perplexity {score.perplexity:.2f} (static, {num_columns} "
            f"{'column' if num_columns == 1 else 'columns'}, {score.num_tokens:,} tokens "
            f"predicted, {score.nats:.4f} nats each)"
        )
    console.print(
        f"The run is {outcome.reason}: {outcome.num_tokens:,} tokens in {outcome.seconds:.0f} s.\n"
        f"  {run.folder}/model.safetensors     the best model; highrank.load reads it\n"
        f"  {run.folder}/metrics.jsonl         all numbers\n"
        f"  {run.folder}/learning-curve.png    a picture of them"
    )
    head = run.trainer.config.head
    if found.specialisation is None and head.grow_at is not None and head.num_components > 1:
        console.print("It is one softmax: the run ended before the head could grow.")
    elif found.specialisation is not None:
        console.print(_parting(found.specialisation, run))
    console.print(f"It writes, at temperature {TEMPERATURE}:")
    model, vocabulary = load(run.folder, str(run.trainer.device))
    steps = stream(
        model,
        vocabulary,
        (),
        Sampling(temperature=TEMPERATURE),
        num_words=60,
        num_samples=NUM_SAMPLES,
    )
    print_samples(console, corpus.level, steps, NUM_SAMPLES)
    console.print(
        f"More of it: highrank generate {_quoted(run)} --temperature {TEMPERATURE}\n"
        f"Other perplexities: highrank evaluate {_quoted(run)} --help"
    )
