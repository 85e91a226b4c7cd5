"""Runs on the One Billion Word Benchmark, cut to 100,000 words as in Yang et al. (2018), table 3.

Neither their code nor their optimiser for it was published: the sizes are those that give the
printed numbers of parameters, everything about training is our choice. No run was trained to its
end here. Perplexities with 100,000 words do not compare with those of all 793,471: more words are
`<unk>`, which is easy to predict.
"""

from dataclasses import replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig

# Which words are frequent.
BANDS = {"frequent": 10_000}


def lm1b_softmax() -> RunConfig:
    """Two LSTM layers of 1,024 and one softmax, 119 M parameters: test 42.77 (Yang, table 3)."""
    return RunConfig(
        corpus="one-billion-100000",
        model=ModelConfig(
            embedding_size=1024,
            # The paper says that dropout did not help.
            options={"hidden_sizes": (1024, 1024)},
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(kind="sentences", batch_size=128, options={"length": 20}),
        train=StageConfig(
            optimizer="adamw",
            lr=1e-3,
            weight_decay=0.0,
            warmup_steps=1000,
            clip=1.0,
            epochs=5,
            anneal=True,
        ),
        validate_every=50_000_000,
    )


def lm1b_mos() -> RunConfig:
    """K = 7, contexts of 900, LSTM layers of 1,024, 113 M parameters: 38.01 valid, 37.10 test."""
    softmax = lm1b_softmax()
    return replace(
        softmax,
        model=replace(softmax.model, embedding_size=900),
        head=replace(softmax.head, kind="mos", num_components=7),
    )


def lm1b_adaptive_softmax() -> RunConfig:
    """`lm1b-softmax` with 90,000 rare words that are computed where they are needed only.

    121,393,825 parameters: a projection of the hidden state for the rare words comes on top.
    """
    config = lm1b_softmax()
    head = replace(config.head, kind="adaptive-softmax", start_bias="unigram", options=BANDS)
    return replace(config, head=head)


def lm1b_adaptive_mos() -> RunConfig:
    """`lm1b-mos` with a mixture over the frequent words only, 113,773,765 parameters."""
    config = lm1b_mos()
    head = replace(config.head, kind="adaptive-mos", start_bias="unigram", options=BANDS)
    return replace(config, head=head)


def lm1b_components() -> RunConfig:
    """An adaptive softmax, a pointer to the sentence's own words, and a trigram model of train.

    Counting takes temporary files of about 100 bytes for each token of the training split: 80 GB.
    """
    config = lm1b_adaptive_softmax()
    options = {**BANDS, "ngram_order": 3}
    head = replace(config.head, kind="adaptive-softmax+pointer+ngram", options=options)
    return replace(config, head=head)
