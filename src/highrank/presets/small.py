"""The default run: small enough for a laptop's lunch break, large enough to write sentences."""

from dataclasses import replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig


def small() -> RunConfig:
    """A mixture of softmaxes, grown late, on the State of the Union addresses; about 10 minutes."""
    return RunConfig(
        corpus="sotu",
        model=ModelConfig(
            embedding_size=64,
            hidden_sizes=(256, 192),
            embedding_dropout=0.05,
            input_dropout=0.2,
            hidden_dropout=0.2,
            output_dropout=0.2,
            weight_dropout=0.2,
            embedding_range=0.5,
        ),
        head=HeadConfig(kind="mos", num_components=4, dropout=0.1, grow_at=0.85),
        batch=BatchConfig(batch_size=32, bptt=35, bptt_max_delta=20),
        train=StageConfig(
            optimizer="adamw", lr=3e-3, weight_decay=0.01, clip=1.0, epochs=2, anneal=True
        ),
        activation_penalty=0.0,
        temporal_penalty=0.0,
    )


def small_softmax() -> RunConfig:
    """One softmax with as many parameters and contexts of the same size, for comparison."""
    mos = small()
    return replace(
        mos,
        model=replace(mos.model, hidden_sizes=(361, mos.model.embedding_size)),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.1),
    )
