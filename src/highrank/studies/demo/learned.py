"""`highrank bench language`: how near trained networks come to what their heads can express.

The demo fits each head with a free vector for every context. Here the vectors come from an AWD-LSTM
that learns the contexts from text sampled from an exact language. Its loss is compared with the
language's own on the same test tokens: what is left is the model's excess, and little noise.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from highrank.analysis.components import mixture_use
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data import Language, factorised
from highrank.data.sampled import MemoryCorpus, sample_corpus
from highrank.evaluation.static import evaluate
from highrank.run.loading import load
from highrank.studies.demo.fit import fit_head
from highrank.training.outcome import Outcome, Progress, Reason
from highrank.training.session import open_session

RANK, CONTEXT_SIZE, NUM_COMPONENTS = 64, 16, 24
SIZES = {"train": 2_000_000, "valid": 50_000, "test": 200_000}
# Epochs of a run that time ends.
ENDLESS = 1000


# A mixture of one component is a softmax.
SOFTMAX = HeadConfig(kind="mos", num_components=1, dropout=0.0, activation="identity")
VARIANTS = {
    "softmax": SOFTMAX,
    "mos": replace(SOFTMAX, num_components=NUM_COMPONENTS),
}


@dataclass(frozen=True, kw_only=True)
class LearnedHead:
    head: str
    num_components: int
    num_parameters: int
    perplexity: float
    """Of the trained AWD-LSTM on the test tokens, batch size 1."""
    excess: float
    """Nats per token above the language itself, on the same tokens."""
    optimum: float
    """Nats per token above the language, of the same head with a free vector for every context."""
    specialisation: float | None
    """Mutual information I(component; token), in nats; None for one softmax."""
    num_tokens: int
    """Trained on, over all epochs."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LearnedLanguageResult:
    rank: int
    vocab_size: int
    num_contexts: int
    context_size: int
    num_tokens: int
    """Of the training split."""
    epochs: int | None
    """None if time ended the runs."""
    budget: float | None
    """Seconds of each run; None if epochs ended them."""
    entropy: float
    """Of the language, in nats per token."""
    floor: float
    """Perplexity of the language itself on the test tokens: no model is expected to be below."""
    heads: tuple[LearnedHead, ...]


def run_learned_language(
    folder: Path,
    *,
    num_contexts: int = 100,
    epochs: int = 5,
    budget: float | None = None,
    seed: int = 0,
    on_progress: Callable[[float, str], None] | None = None,
) -> LearnedLanguageResult:
    """Train all variants, or resume where an interrupted call in the same folder stopped.

    Args:
        folder: of the runs.
        num_contexts: of the language, a square of at least 64: which of √C groups each of the last
            two tokens was in. The more there are, the less often the corpus shows each.
        epochs: of each run, unless there is a budget.
        budget: seconds of each run.
    """
    language = factorised(rank=RANK, num_contexts=num_contexts, seed=seed)
    corpus = sample_corpus(language, SIZES)
    length = f"{epochs}e" if budget is None else f"{budget:g}s"
    heads = []
    for index, (name, head) in enumerate(VARIANTS.items()):

        def show(progress: Progress, index: int = index, name: str = name) -> None:
            if on_progress is not None:
                done = (index + progress.fraction) / len(VARIANTS)
                on_progress(done, f"{name}, epoch {progress.epoch}")

        run = folder / f"{name.replace(', ', '-')}-{num_contexts}-{length}-seed{seed}"
        config = run_config(head, epochs if budget is None else ENDLESS, seed)
        with closing(open_session(config, corpus, run, budget=budget, on_progress=show)) as session:
            outcome = session.go()
        if outcome.reason is Reason.INTERRUPTED:
            raise KeyboardInterrupt
        heads.append(_learned_head(name, language, corpus, run, outcome, seed))
    return LearnedLanguageResult(
        rank=RANK,
        vocab_size=language.vocab_size,
        num_contexts=num_contexts,
        context_size=CONTEXT_SIZE,
        num_tokens=SIZES["train"],
        epochs=epochs if budget is None else None,
        budget=budget,
        entropy=language.entropy,
        floor=float(np.exp(corpus.floor or 0.0)),
        heads=tuple(heads),
    )


def _learned_head(
    name: str, language: Language, corpus: MemoryCorpus, run: Path, outcome: Outcome, seed: int
) -> LearnedHead:
    model, _ = load(run)
    variant, use = VARIANTS[name], mixture_use(model, corpus.split("valid"))
    optimum = fit_head(language, "mos", CONTEXT_SIZE, variant.num_components, seed)
    found = evaluate(model, corpus.split("test"), batch_size=1)
    return LearnedHead(
        head=name,
        num_components=variant.num_components,
        num_parameters=sum(p.numel() for p in model.parameters()),
        perplexity=found.perplexity,
        excess=found.nats - (corpus.floor or 0.0),
        optimum=language.excess(optimum.log_prob.numpy()),
        specialisation=None if use is None else use.specialisation,
        num_tokens=outcome.num_tokens,
        seconds=outcome.seconds,
    )


def run_config(head: HeadConfig, epochs: int, seed: int) -> RunConfig:
    """The same network for all heads: the last two tokens are all there is to remember."""
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
