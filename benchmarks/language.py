"""Trained networks against what their heads can express of an exact language.

    python benchmarks/language.py --threads 1

The demo fits each head with a free vector for every context. Here the vectors come from an AWD-LSTM
that learns from sampled text. Its loss is compared with the language's own on the same test tokens.
"""

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from highrank.analysis.components import mixture_use
from highrank.cli.console import Threads, show, training_progress, unless_given
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data import Language, factorised
from highrank.data.corpus import MemoryCorpus
from highrank.data.languages import sample_corpus
from highrank.environment import set_threads
from highrank.evaluation.static import evaluate
from highrank.report.formats import make_table
from highrank.run.loading import load
from highrank.studies.demo.measure import fit_head
from highrank.training.budget import parse_duration
from highrank.training.outcome import Progress, Reason
from highrank.training.session import open_session

# The last: epochs of a run that time ends.
RANK, CONTEXT_SIZE, ENDLESS = 64, 16, 1000
COLUMNS = {
    "K": "{num_components}",
    "test\nppl": "{perplexity:.3f}",
    "excess": "{excess:+.2%}",
    "optimum": "{optimum:+.2%}",
    "MI,\nnats": "{specialisation:.2f}",
    "para-\nmeters": "{num_parameters:,}",
    "tokens": "{num_tokens:,}",
    "s": "{seconds:.0f}",
}


def language(
    *,
    runs: Path = Path("runs/language"),
    contexts: int = 100,
    components: int = 24,
    tokens: int = 2_000_000,
    epochs: int = 5,
    budget: Annotated[str | None, unless_given("epochs decide", "TIME")] = None,
    seed: int = 0,
    threads: Threads = None,
    json: bool = False,
) -> None:
    """Do trained AWD-LSTMs reach what their heads can express of an exact language?

    A softmax and a mixture, E = 16; log P of rank 64. An hour; may be resumed.

    Args:
        runs: Where the runs go.
        contexts: Of the language, a square from 64 on: 100, or 400 for a harder one.
        components: Of the mixture.
        tokens: Of the training split; the test split has a tenth of them, valid a fortieth.
        epochs: Passes over the training split.
        budget: Equal time for each head instead of epochs: 90s, 6m.
        seed: Of the language and the weights.
        threads: Of the matrix multiplies.
        json: Print the numbers as JSON instead of a table.
    """
    set_threads(threads)
    seconds = None if budget is None else parse_duration(budget)
    source = factorised(rank=RANK, num_contexts=contexts, seed=seed)
    corpus = sample_corpus(source, {"train": tokens, "valid": tokens // 40, "test": tokens // 10})
    length = f"{epochs}e" if seconds is None else f"{seconds:g}s"
    heads = {}
    with training_progress() as bar:
        for name, count in {"softmax": 1, "mos": components}.items():
            run = runs / f"{name}-{contexts}-{length}-seed{seed}"
            config = run_config(count, ENDLESS if seconds else epochs, seed)
            heads[name] = learn(source, corpus, config, run, seconds, bar)
    show({"floor": math.exp(corpus.floor or 0.0), "heads": heads}, table, json=json)


def learn(
    source: Language,
    corpus: MemoryCorpus,
    config: RunConfig,
    run: Path,
    budget: float | None,
    bar: Callable[[Progress], None],
) -> dict[str, float]:
    """Train a network, or resume it; excess and optimum are nats above the language's."""
    with closing(open_session(config, corpus, run, budget=budget, on_progress=bar)) as session:
        outcome = session.go()
    if outcome.reason is Reason.INTERRUPTED:
        raise KeyboardInterrupt
    model, _ = load(run)
    num_components, use = config.head.num_components, mixture_use(model, corpus.split("valid"))
    optimum = fit_head(source, "mos", CONTEXT_SIZE, num_components, config.seed)
    found = evaluate(model, corpus.split("test"), batch_size=1)
    return {
        "num_components": num_components,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "perplexity": found.perplexity,
        "excess": found.nats - (corpus.floor or 0.0),
        "optimum": source.excess(optimum.log_prob.numpy()),
        "specialisation": 0.0 if use is None else use.specialisation,
        "num_tokens": outcome.num_tokens,
        "seconds": outcome.seconds,
    }


def run_config(num_components: int, epochs: int, seed: int) -> RunConfig:
    """The same network for all heads: the last two tokens are all there is to remember."""
    # A mixture of one component is a softmax.
    head = HeadConfig(kind="mos", num_components=num_components, dropout=0.0, activation="identity")
    return RunConfig(
        corpus="an exact language",
        seed=seed,
        model=ModelConfig(
            embedding_size=CONTEXT_SIZE,
            tied=False,
            options={"hidden_sizes": (192,), "embedding_range": 0.5},
        ),
        head=head,
        batch=BatchConfig(batch_size=32, options={"bptt": 10, "bptt_std": 0.0}),
        train=StageConfig(
            optimizer="adamw", lr=3e-3, weight_decay=0.0, clip=1.0, epochs=epochs, anneal=True
        ),
    )


def table(result: dict[str, Any]) -> Table:
    caption = (
        f"The language has perplexity {result['floor']:.3f} on test. "
        "Excess: perplexity above the language's. Optimum: the same head with a free vector for "
        "every context, fitted to the language itself. MI: I(component; token) on valid."
    )
    shown = make_table(("head",), COLUMNS, title="AWD-LSTMs on a language", caption=caption)
    for name, head in result["heads"].items():
        percent = {key: math.expm1(head[key]) for key in ("excess", "optimum")}
        shown.add_row(name, *(text.format(**{**head, **percent}) for text in COLUMNS.values()))
    return shown


if __name__ == "__main__":
    tyro.cli(language, config=(tyro.conf.FlagCreatePairsOff,))
