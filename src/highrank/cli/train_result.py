"""What a run has come to: evaluated, drawn, told."""

import dataclasses
from typing import TYPE_CHECKING

from rich.console import Console

from highrank.cli.pen import print_samples
from highrank.cli.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    from highrank.data.corpus import Corpus
    from highrank.evaluation.static import Evaluation
    from highrank.training.loop import Outcome, Run

# Below 1, as people read samples; `highrank generate` has all settings.
TEMPERATURE, NUM_SAMPLES = 0.8, 3
# How many contexts of valid tell whether the components have parted; `highrank audit` reads more.
NUM_CONTEXTS = 500


def evaluate_run(
    run: "Run", corpus: "Corpus", outcome: "Outcome"
) -> tuple["Evaluation", "Evaluation"]:
    """Of the best model: on valid as it was when it was saved, and on test. Draws the curve."""
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
    return valid, test


def specialisation(run: "Run") -> float | None:
    """What the speaking component tells about the next word, in nats; None without a mixture."""
    import torch

    from highrank.analysis.components import component_report
    from highrank.build import load
    from highrank.heads import MixtureOfSoftmaxes

    model, _ = load(run.folder, str(run.trainer.device))
    if not isinstance(model.head, MixtureOfSoftmaxes) or model.head.num_components == 1:
        return None
    words = torch.from_numpy(run.valid[:NUM_CONTEXTS].astype("int64"))[:, None]  # (T, 1)
    with torch.no_grad():
        hidden = model.backbone(words.to(run.trainer.device), model.initial_state(1))[0]
    return component_report(model.head, hidden[:, 0], num_pair_contexts=1).specialisation


def _parting(nats: float, folder: "Path") -> str:
    """Whether the components have parted, and what to do if not."""
    from highrank.reports.audit_verdict import ALIKE

    text = f"Which component speaks tells {nats:.3f} nats about the next word (valid)."
    if nats >= ALIKE:
        return f"{text} More: highrank audit {folder}"
    return (
        f"{text} They say nearly the same: the model is close to one softmax. "
        "They part if the mixture grows earlier (--head.grow-at), trains longer, or has smaller "
        "embeddings (--model.embedding-size)."
    )


def as_json(
    run: "Run", outcome: "Outcome", valid: "Evaluation", test: "Evaluation"
) -> dict[str, object]:
    return {
        "run": str(run.folder),
        **dataclasses.asdict(outcome),
        "num_parameters": sum(p.numel() for p in run.trainer.model.parameters()),
        "specialisation": specialisation(run),
        "valid": {"perplexity": valid.perplexity, **valid._asdict()},
        "test": {"perplexity": test.perplexity, **test._asdict()},
    }


def tell(
    run: "Run", corpus: "Corpus", outcome: "Outcome", valid: "Evaluation", test: "Evaluation"
) -> None:
    """Perplexities, files and three samples."""
    from highrank.build import load
    from highrank.generation import Sampling, stream

    console = Console(highlight=False, soft_wrap=True)
    for split, found, num_columns in (
        ("valid", valid, run.trainer.config.valid_columns),
        ("test ", test, 1),
    ):
        console.print(
            f"{split} perplexity {found.perplexity:.2f} (static, {num_columns} "
            f"{'column' if num_columns == 1 else 'columns'}, {found.num_tokens:,} tokens "
            f"predicted, {found.nats:.4f} nats each)"
        )
    console.print(
        f"The run is {outcome.reason}: {outcome.num_tokens:,} tokens in {outcome.seconds:.0f} s.\n"
        f"  {run.folder}/model.safetensors     the best model; highrank.load reads it\n"
        f"  {run.folder}/metrics.jsonl         all numbers\n"
        f"  {run.folder}/learning-curve.png    a picture of them"
    )
    nats = specialisation(run)
    if nats is not None:
        console.print(_parting(nats, run.folder))
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
        f"More of it: highrank generate {run.folder} --temperature {TEMPERATURE}\n"
        f"Other perplexities: highrank evaluate {run.folder} --help"
    )
