"""Do trained networks reach what their heads can say? AWD-LSTMs on the text of an exact language.

The demo fits each head alone, with a free vector for every context. Here the vectors come from an
LSTM that must learn the contexts from text. The loss is compared with the language's own, word by
word on the same test text, so that what is left is the model's excess and little noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from highrank.analysis.components import specialisation
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data import Language, factorised
from highrank.data.vocabulary import Vocabulary
from highrank.evaluation.static import evaluate
from highrank.run import load
from highrank.studies.demo.measure import fit_head
from highrank.training.loop import Progress, Run

RANK, CONTEXT_SIZE, NUM_COMPONENTS = 64, 16, 24
SIZES = {"train": 2_000_000, "valid": 50_000, "test": 200_000}
# Epochs of a run that time ends.
ENDLESS = 1000


class Variant(NamedTuple):
    """One softmax is a mixture of one."""

    num_components: int
    grow_at: float | None = None


VARIANTS = {
    "softmax": Variant(1),
    "mos": Variant(NUM_COMPONENTS),
    "mos, grown": Variant(NUM_COMPONENTS, grow_at=0.4),
}


class LanguageText(NamedTuple):
    """A language as a corpus: its words, and text of each split."""

    vocabulary: Vocabulary
    tokens: dict[str, NDArray[np.integer]]

    def split(self, name: str) -> NDArray[np.integer]:
        return self.tokens[name]


@dataclass(frozen=True, kw_only=True)
class LearnedHead:
    head: str
    num_components: int
    grow_at: float | None
    """The share of the run after which one component became K; None if there were K always."""
    num_parameters: int
    perplexity: float
    """Of the trained AWD-LSTM, test text, one column."""
    excess: float
    """Nats per token above the language itself, on the same words."""
    optimum: float
    """Nats per token above the language, of the same head with a free vector for every context."""
    specialisation: float | None
    """What the speaking component tells about the word, in nats; None for one softmax."""
    num_tokens: int
    """That it read."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LearnedLanguageResult:
    rank: int
    vocab_size: int
    num_contexts: int
    context_size: int
    num_tokens: int
    """Of training text; each epoch reads it once."""
    epochs: int | None
    """None if time ended the runs."""
    budget: float | None
    """Seconds of each run; None if epochs ended them."""
    entropy: float
    """Of the language, in nats per token."""
    floor: float
    """Perplexity of the language itself on the test text: no model is expected to be below."""
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
    """Train them all, or go on where an interrupted call in the same folder was.

    Args:
        folder: of the runs.
        num_contexts: of the language, a square of at least 64: which of √C groups of words each of
            the last two was in. The more there are, the less often the text shows each.
        epochs: of each run, unless there is a budget.
        budget: seconds of each run.
    """
    language = factorised(rank=RANK, num_contexts=num_contexts, seed=seed)
    text, test_loss = language_text(language, SIZES)
    heads = []
    for index, (name, variant) in enumerate(VARIANTS.items()):

        def show(progress: Progress, index: int = index, name: str = name) -> None:
            if on_progress is not None:
                on_progress(
                    (index + progress.fraction) / len(VARIANTS), f"{name}, epoch {progress.epoch}"
                )

        config = run_config(variant, epochs if budget is None else ENDLESS, seed)
        length = f"{epochs}e" if budget is None else f"{budget:g}s"
        run = folder / f"{name.replace(', ', '-')}-{num_contexts}-{length}-seed{seed}"
        outcome = Run(config, text, run, budget=budget, on_progress=show).go()
        if outcome.reason == "interrupted":
            raise KeyboardInterrupt
        model, _ = load(run)
        found = evaluate(model, text.split("test"), batch_size=1)
        fitted = fit_head(language, "mos", CONTEXT_SIZE, variant.num_components, seed)
        heads.append(
            LearnedHead(
                head=name,
                num_components=variant.num_components,
                grow_at=variant.grow_at,
                num_parameters=sum(p.numel() for p in model.parameters()),
                perplexity=found.perplexity,
                excess=found.nats - test_loss,
                optimum=language.excess(fitted.log_prob.numpy()),
                specialisation=specialisation(model, text.split("valid")),
                num_tokens=outcome.num_tokens,
                seconds=outcome.seconds,
            )
        )
    return LearnedLanguageResult(
        rank=RANK,
        vocab_size=language.vocab_size,
        num_contexts=num_contexts,
        context_size=CONTEXT_SIZE,
        num_tokens=SIZES["train"],
        epochs=epochs if budget is None else None,
        budget=budget,
        entropy=language.entropy,
        floor=float(np.exp(test_loss)),
        heads=tuple(heads),
    )


def language_text(language: Language, sizes: dict[str, int]) -> tuple[LanguageText, float]:
    """Text of each split, and the language's own loss on the test text, in nats per token."""
    streams = {
        name: language.sample(size, seed, num_chains=1)
        for seed, (name, size) in enumerate(sizes.items())
    }
    test = streams["test"]
    # The first word is read, not predicted.
    losses = -language.log_prob[test.contexts[0, 1:], test.tokens[0, 1:]]
    tokens = {name: stream.tokens[0].astype(np.uint16) for name, stream in streams.items()}
    # Training needs a word that ends a line; the language does not.
    words = ("<eos>", *(f"w{index}" for index in range(1, language.vocab_size)))
    return LanguageText(Vocabulary(words), tokens), float(losses.mean())


def run_config(variant: Variant, epochs: int, seed: int) -> RunConfig:
    """The same network for all heads: the last two words are all there is to remember."""
    return RunConfig(
        corpus="an exact language",
        seed=seed,
        model=ModelConfig(
            embedding_size=CONTEXT_SIZE,
            hidden_sizes=(192,),
            tied=False,
            embedding_dropout=0.0,
            input_dropout=0.0,
            hidden_dropout=0.0,
            output_dropout=0.0,
            weight_dropout=0.0,
            embedding_range=0.5,
        ),
        head=HeadConfig(
            kind="mos",
            num_components=variant.num_components,
            dropout=0.0,
            activation="identity",
            grow_at=variant.grow_at,
        ),
        batch=BatchConfig(batch_size=32, bptt=10, bptt_std=0.0),
        train=StageConfig(
            optimizer="adamw", lr=3e-3, weight_decay=0.0, clip=1.0, epochs=epochs, anneal=True
        ),
        activation_penalty=0.0,
        temporal_penalty=0.0,
    )
