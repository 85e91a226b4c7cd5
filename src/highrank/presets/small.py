"""Small runs for a laptop: within a family, heads have equal parameters and context sizes."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from highrank.config import (
    BatchConfig,
    HeadConfig,
    ModelConfig,
    RunConfig,
    StageConfig,
    with_options,
)
from highrank.heads import head_class
from highrank.presets.dropout import with_dropout

# It had the lowest perplexity of the heads that were compared at equal CPU time (`highrank
# compare`, three seeds) on Penn Treebank and on the State of the Union addresses. On DailyDialog an
# n-gram without a pointer, and all by objectives of their own, were up to 0.6 % better.
RECOMMENDED = "adaptive-softmax+pointer+ngram"
# Quick, unlike the papers' SGD: the recipe of `highrank compare`. A constant rate and averaged
# weights may end at any time. Without warm-up some seeds start badly.
ADAMW = StageConfig(
    optimizer="adamw",
    lr=8e-3,
    weight_decay=0.01,
    warmup_steps=100,
    clip=1.0,
    epochs=1000,
    average_power=8.0,
)


def small() -> RunConfig:
    """Adaptive softmax, pointer and 5-gram: two epochs of the State of the Union addresses."""
    return RunConfig(
        corpus="sotu",
        model=ModelConfig(
            embedding_size=64,
            options={
                "hidden_sizes": (256, 192),
                "embedding_dropout": 0.05,
                "input_dropout": 0.2,
                "hidden_dropout": 0.2,
                "output_dropout": 0.2,
                "weight_dropout": 0.2,
                "embedding_range": 0.5,
            },
        ),
        head=HeadConfig(kind=RECOMMENDED, num_components=1, dropout=0.1, start_bias="unigram"),
        batch=BatchConfig(batch_size=20, options={"bptt": 35, "bptt_max_delta": 20}),
        train=replace(ADAMW, epochs=2),
    )


# Two epochs of the State of the Union addresses.
NUM_TOKENS = 4_200_000
MOST_EPOCHS = 20
# With a budget the clock ends the run, or so many epochs after which valid was no better.
STOP_AFTER = 10
# With fewer tokens, steps are smaller, and more.
FEW_TOKENS = 100_000


def fitted(
    config: RunConfig,
    num_train: int,
    given: Collection[str] = frozenset(),
    *,
    has_budget: bool = False,
) -> RunConfig:
    """The preset for a text of the user's: as many tokens, but a short text at most 20 times.

    Args:
        num_train: tokens of the training split.
        given: options that the user has chosen, such as train.epochs; they stay.
        has_budget: whether the clock ends the run, so that no number of tokens has to. It ends
            before where it learns nothing more.
    """
    train = config.train
    if "train.epochs" not in given:
        epochs = round(min(MOST_EPOCHS, max(1, NUM_TOKENS / num_train)))
        train = replace(train, epochs=ADAMW.epochs if has_budget else epochs)
        if has_budget and "train.stop-after" not in given:
            train = replace(train, stop_after=STOP_AFTER)
    config = replace(config, train=train)
    if num_train < FEW_TOKENS:
        if "batch.batch-size" not in given:
            config = replace(config, batch=replace(config.batch, batch_size=8))
        if "valid-batch-size" not in given:
            config = replace(config, valid_batch_size=1)
    num_tokens = _num_tokens(config, num_train)
    if not has_budget:
        config = with_dropout(config, num_tokens, num_train, given)
    return config if "train.warmup-steps" in given else with_warmup(config, num_tokens)


def _num_tokens(config: RunConfig, num_train: int) -> float:
    """Tokens that a run without a budget reads: of its epochs, tokens and steps the least."""
    train = config.train
    steps = math.inf if train.steps is None else train.steps * _tokens_per_step(config)
    tokens = math.inf if train.tokens is None else train.tokens
    return min(train.epochs * num_train, tokens, steps)


def _tokens_per_step(config: RunConfig) -> int:
    return int(config.batch.batch_size * config.batch.options.get("bptt", 70))


def with_warmup(config: RunConfig, num_tokens: float) -> RunConfig:
    """The configuration with a warm-up of at most a fifth of the steps that it reads tokens in."""
    steps = num_tokens / _tokens_per_step(config)
    warmup = min(config.train.warmup_steps, math.ceil(steps / 5))
    return replace(config, train=replace(config.train, warmup_steps=warmup))


def small_mos() -> RunConfig:
    """The same network with a mixture of four softmaxes."""
    config = small()
    return replace(config, head=replace(config.head, kind="mos", num_components=4))


def small_softmax() -> RunConfig:
    """One softmax with as many parameters and contexts of the same size, for comparison."""
    config = small()
    return replace(
        config,
        model=with_options(config.model, hidden_sizes=(361, config.model.embedding_size)),
        head=replace(config.head, kind="softmax"),
    )


def ptb_small_softmax() -> RunConfig:
    """A small AWD-LSTM with one softmax, 1.82 million parameters; meant for --budget 20m."""
    return RunConfig(
        corpus="penn-treebank",
        model=ModelConfig(
            embedding_size=64,
            options={
                "hidden_sizes": (476, 64),
                "input_dropout": 0.1,
                "hidden_dropout": 0.1,
                "output_dropout": 0.1,
                "weight_dropout": 0.1,
                "embedding_range": 0.5,
            },
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0, start_bias="unigram"),
        batch=BatchConfig(batch_size=20, options={"bptt": 35, "bptt_max_delta": 20}),
        train=ADAMW,
    )


def ptb_small_mos() -> RunConfig:
    """The same size and budget, with a mixture of five softmaxes.

    Contexts that start nearly equal learned faster than independent ones, with three seeds.
    """
    softmax = ptb_small_softmax()
    options = {"start_noise": 0.05}
    head = replace(softmax.head, kind="mos", num_components=5, options=options)
    return replace(softmax, model=with_options(softmax.model, hidden_sizes=(320, 256)), head=head)


def ptb_small(kind: str) -> Callable[[], RunConfig]:
    """The preset of a head: `ptb_small_mos` with another one."""

    def preset() -> RunConfig:
        num_components = head_class(kind).default_components
        config = ptb_small_mos()
        head = replace(config.head, kind=kind, num_components=num_components, options={})
        return replace(config, head=head)

    preset.__doc__ = f"The same LSTM, embedding and budget, with the head {kind}."
    if kind == RECOMMENDED:
        preset.__doc__ += " Recommended: the lowest perplexity in equal time (docs/log.md)."
    return preset
