"""Penn Treebank in twenty minutes of a laptop: three heads, equal in parameters and context size.

All three have contexts of 64 numbers and 1.82 million parameters.
"""

from dataclasses import replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig

CONTEXT_SIZE = 64


def ptb_small_softmax() -> RunConfig:
    """A small AWD-LSTM with one softmax; meant for --budget 20m."""
    return RunConfig(
        corpus="penn-treebank",
        model=_model(476, CONTEXT_SIZE),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=20, window=35, window_extra=20),
        train=StageConfig(
            optimizer="adamw", lr=3e-3, weight_decay=0.01, clip=1.0, epochs=1000, anneal=True
        ),
        activation_penalty=0.0,
        temporal_penalty=0.0,
    )


def ptb_small_mos() -> RunConfig:
    """The same size and budget, with a mixture of five softmaxes from the start."""
    head = HeadConfig(kind="mos", num_components=5, dropout=0.0)
    return replace(ptb_small_softmax(), model=_model(320, 256), head=head)


def ptb_small_grown() -> RunConfig:
    """The same mixture, grown from one softmax after 70 % of the budget."""
    mos = ptb_small_mos()
    return replace(mos, head=replace(mos.head, grow_at=0.7))


def _model(*hidden_sizes: int) -> ModelConfig:
    return ModelConfig(
        embedding_size=CONTEXT_SIZE,
        hidden_sizes=hidden_sizes,
        embedding_dropout=0.0,
        input_dropout=0.1,
        hidden_dropout=0.1,
        output_dropout=0.1,
        weight_dropout=0.1,
        embedding_range=0.5,
    )
