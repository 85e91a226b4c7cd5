"""Comparisons with a name, and the network and recipe that all cells of a comparison share.

The rate is constant and the weights are averaged (Shamir and Zhang, 2013), so that a run may be
measured whenever its tokens or its time are those of the others.
"""

from dataclasses import replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig

# Weights of the last ninth of a run, about.
AVERAGE_POWER = 8.0
CONSTANT = StageConfig(
    optimizer="adamw",
    lr=2e-3,
    weight_decay=0.01,
    clip=1.0,
    epochs=1_000_000,
    average_power=AVERAGE_POWER,
)


def base_config(corpus: str, embedding_size: int, hidden_sizes: tuple[int, ...]) -> RunConfig:
    """Small and quick: AdamW, little dropout."""
    return RunConfig(
        corpus=corpus,
        model=ModelConfig(
            embedding_size=embedding_size,
            hidden_sizes=hidden_sizes,
            embedding_dropout=0.0,
            input_dropout=0.1,
            hidden_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
            embedding_range=0.5,
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=20, bptt=35, bptt_max_delta=20),
        train=CONSTANT,
        activation_penalty=0.0,
        temporal_penalty=0.0,
    )


def language_config(corpus: str, embedding_size: int, hidden_sizes: tuple[int, ...]) -> RunConfig:
    """For exact languages: the last two tokens are all there is to remember; linear contexts."""
    config = base_config(corpus, embedding_size, hidden_sizes)
    model = replace(
        config.model, tied=False, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0
    )
    return replace(
        config,
        model=replace(model, weight_dropout=0.0),
        head=replace(config.head, activation="identity"),
        batch=BatchConfig(batch_size=32, bptt=10, bptt_std=0.0),
        train=replace(CONSTANT, lr=3e-3, weight_decay=0.0),
    )
