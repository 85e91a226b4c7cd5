"""Comparisons with a name, and the network and recipe that all variants of a comparison share.

The rate is constant and the weights are averaged (Shamir and Zhang, 2013), so that a run may be
measured whenever its tokens or its time are those of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.presets.papers import ptb_mos
from highrank.studies.compare.source import LANGUAGES

# Weights of the last ninth of a run, about.
AVERAGE_POWER = 8.0
CONSTANT = StageConfig(
    optimizer="adamw",
    lr=8e-3,
    weight_decay=0.01,
    # Without it one softmax starts badly with some seeds: losses differed by 0.1 to 0.3 nats.
    warmup_steps=100,
    clip=1.0,
    epochs=1_000_000,
    average_power=AVERAGE_POWER,
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared on what, as the command's defaults."""

    corpus: str
    heads: tuple[str, ...] = ("tied-softmax", "mos", "adaptive-pointer")
    components: tuple[int, ...] = (4,)
    embedding: tuple[int, ...] = (64,)
    hidden_sizes: tuple[int, ...] = (256, 192)
    seeds: int = 3
    budget: str = "12m"
    equal: tuple[str, ...] = ("parameters", "context", "tokens")
    max_tokens: int | None = None
    is_paper_size: bool = False
    """With the paper's network and optimiser, for a GPU."""


def small_config(corpus: str, hidden_sizes: tuple[int, ...], num_train: int) -> RunConfig:
    """Small and quick: AdamW, little dropout."""
    return RunConfig(
        corpus=corpus,
        model=ModelConfig(
            embedding_size=64,
            hidden_sizes=hidden_sizes,
            embedding_dropout=0.0,
            input_dropout=0.1,
            hidden_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
            embedding_range=0.5,
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        # With fewer tokens, steps are smaller, and more.
        batch=BatchConfig(batch_size=20 if num_train >= 100_000 else 8, bptt=35, bptt_max_delta=20),
        train=CONSTANT,
        activation_penalty=0.0,
        temporal_penalty=0.0,
    )


def language_config(corpus: str, hidden_sizes: tuple[int, ...], num_train: int) -> RunConfig:
    """For exact languages: the last two tokens are all there is to remember; linear contexts."""
    config = small_config(corpus, hidden_sizes, num_train)
    model = replace(
        config.model, tied=False, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0
    )
    # Embeddings of a few numbers need a large start: with ±0.5 nothing is learned for a while.
    return replace(
        config,
        model=replace(model, weight_dropout=0.0, embedding_size=8, embedding_range=1.5),
        head=replace(config.head, activation="identity"),
        batch=BatchConfig(batch_size=32, bptt=10, bptt_std=0.0),
        train=replace(CONSTANT, lr=4e-3, weight_decay=0.0, warmup_steps=200),
    )


def paper_config(corpus: str, hidden_sizes: tuple[int, ...], num_train: int) -> RunConfig:
    """The paper's network, dropout and SGD, at a constant rate."""
    paper = ptb_mos()
    stage = replace(
        paper.train, switch_after=None, epochs=CONSTANT.epochs, average_power=AVERAGE_POWER
    )
    model = replace(paper.model, hidden_sizes=hidden_sizes)
    return replace(paper, corpus=corpus, model=model, train=stage, finetune=None)


def base_config(comparison: Comparison, num_train: int) -> RunConfig:
    """What every variant begins with; its head and its sizes are replaced."""
    make = small_config
    if comparison.is_paper_size:
        make = paper_config
    elif comparison.corpus in LANGUAGES:
        make = language_config
    return make(comparison.corpus, comparison.hidden_sizes, num_train)


PAPER = Comparison(
    corpus="penn-treebank",
    embedding=(280,),
    hidden_sizes=(960, 960, 620),
    budget="72h",
    is_paper_size=True,
)
SMALL = Comparison(corpus="penn-treebank", hidden_sizes=(320, 256), budget="2h")
LANGUAGE = Comparison(
    corpus="senses",
    heads=("moc", "mos"),
    components=(3,),
    embedding=(8,),
    hidden_sizes=(96, 64),
    budget="2.5m",
)
# A softmax with d = 31 represents the language of rank 32.
FACTORISED = replace(LANGUAGE, corpus="factorised", embedding=(8, 31), budget="5m")
DEFAULT_TEXT = Comparison(
    corpus="sotu", hidden_sizes=(96, 64), embedding=(32,), max_tokens=200_000, budget="2.5m"
)
COMPARISONS: dict[str, Callable[[], Comparison]] = {
    # Yang et al. (2018), table 5: Softmax with the mixture's and with its own sizes, MoC, MoS.
    "paper-ablation-ptb": lambda: replace(
        PAPER, heads=("tied-softmax", "moc", "mos"), components=(15,)
    ),
    # Table 7.
    "paper-k-sweep-ptb": lambda: replace(PAPER, heads=("mos",), components=(3, 5, 10, 15, 20)),
    "paper-ablation-ptb-small": lambda: replace(
        SMALL, heads=("tied-softmax", "moc", "mos"), components=(5,)
    ),
    # Few tokens, read several times: otherwise there is no gap to see.
    "paper-k-sweep-ptb-small": lambda: replace(
        SMALL,
        heads=("mos",),
        components=(3, 5, 10, 15),
        embedding=(32,),
        max_tokens=100_000,
        budget="30m",
    ),
}


def comparison_of(name: str) -> Comparison:
    """A preset, or what is the default for a corpus."""
    if name in COMPARISONS:
        return COMPARISONS[name]()
    if name in LANGUAGES:
        return FACTORISED if name == FACTORISED.corpus else replace(LANGUAGE, corpus=name)
    return replace(SMALL if name == "penn-treebank" else Comparison(corpus=name), corpus=name)
