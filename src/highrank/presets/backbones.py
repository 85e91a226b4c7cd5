"""Runs of other networks than AWD-LSTM."""

from dataclasses import replace
from typing import Any

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.presets.small import small

DROPOUTS = {"input_dropout": 0.1, "hidden_dropout": 0.1, "output_dropout": 0.1}
# Networks with as many parameters as the LSTM of `small`.
SMALL_SIZES: dict[str, dict[str, Any]] = {
    "awd-lstm": {"hidden_sizes": (256, 192)},
    "transformer": {
        "hidden_size": 128,
        "num_layers": 3,
        "feedforward_size": 422,
        "memory": 64,
        "embedding_lr_scale": 4.0,
    },
    "gated-cnn": {"hidden_size": 192, "num_blocks": 9, "bottleneck_size": 55, "kernel_size": 5},
}
# The rate of AdamW for an LSTM, times this: the best of short runs (docs/log.md).
RATES = {"transformer": 0.375, "gated-cnn": 1.0}
# Networks that end in a norm: behind it, a tanh slows mixtures down (docs/log.md).
ENDS_IN_NORM = frozenset({"transformer"})


def on_network(config: RunConfig, kind: str) -> RunConfig:
    """A configuration with an LSTM on another network, of the size of `small`, with its recipe.

    It has dropout where the LSTM has some, and linear contexts behind a last norm.
    """
    before = config.model.options
    options = SMALL_SIZES[kind] | {"embedding_range": before["embedding_range"]}
    if any(name in before for name in DROPOUTS):
        options |= DROPOUTS
    rate = float(f"{RATES[kind] * config.train.lr:.3g}")
    model = replace(config.model, kind=kind, options=options)
    head = replace(config.head, activation="identity") if kind in ENDS_IN_NORM else config.head
    return replace(config, model=model, head=head, train=replace(config.train, lr=rate))


def with_network(config: RunConfig, kind: str) -> RunConfig:
    """A small preset on another network, of as many parameters as the LSTM of `small`.

    Other configurations are returned as they are: their networks have no such twin.
    """
    lstm = small()
    is_small = config.model.embedding_size == lstm.model.embedding_size
    if kind == config.model.kind or kind not in SMALL_SIZES or not is_small:
        return config
    model, train = lstm.model, replace(config.train, lr=lstm.train.lr)
    head = replace(config.head, activation=lstm.head.activation)
    model = replace(model, tied=config.model.tied)
    config = replace(config, model=model, head=head, train=train)
    return config if kind == lstm.model.kind else on_network(config, kind)


def small_transformer() -> RunConfig:
    """The head of `small` on a Transformer of as many parameters."""
    return with_network(small(), "transformer")


def small_gated_cnn() -> RunConfig:
    """The head of `small` on a gated CNN of as many parameters."""
    return with_network(small(), "gated-cnn")


def ptb_transformer_softmax() -> RunConfig:
    """A Transformer of 24 million parameters after Dai's recipe for Transformer-XL.

    Three public logs (ischlag/Fast-Weight-Memory-public) have 59.75 on valid and 55.3 on test, on
    average; their test is at temperature 1.08, which was set by hand, valid at 1. What differs:

    - Network: norms stand before the layers, and one at the end; positions are rotary, there by
      sinusoids with dropout 0.6. Nothing drops queries, keys and values (there 0.2, locked).
    - Context: each layer sees 70 tokens before each token, in training and in evaluation. There 70
      tokens before a window are read again, and in evaluation 130 before each window of 10.
    - Start: linear layers normal with 1 / √inputs, smaller where layers add up (there 0.02), norms
      at 1 (there normal around it), embeddings uniform, of the same deviation.
    - Optimiser: weight decay is decoupled and on matrices (there in the gradient, on all). The
      cosine begins with the warm-up, and the embeddings' rate stays twice that of the rest to the
      end (there both end at 1e-4). AR is on the states after dropout (there before). The average
      begins at the best weights with a new optimiser (there at the last, with the same one).
    - Windows are at most 110 tokens; the loss on valid is divided by the predicted tokens (there
      by 1 in 7,376 more).
    """
    return RunConfig(
        corpus="penn-treebank",
        model=ModelConfig(
            kind="transformer",
            embedding_size=380,
            options={
                "hidden_size": 380,
                "num_layers": 16,
                "num_heads": 10,
                "feedforward_size": 900,
                "feedforward": "relu",
                "norm": "layer",
                "memory": 70,  # --ext_len 70
                "embedding_range": 0.0346,  # --init_std 0.02, times √3
                "embedding_scale": 19.5,  # √380
                "embedding_lr_scale": 2.0,  # --emb_mult 2
                "embedding_dropout": 0.2,  # --dropoute 0.2
                "input_dropout": 0.6,  # --dropouti 0.6
                "attention_dropout": 0.2,  # --dropouta 0.2
                "feedforward_dropout": 0.2,  # --dropoutf 0.2
                # Of what is added: --dropouta and --dropoutf, too.
                "hidden_dropout": 0.2,
                "output_dropout": 0.5,  # --dropouto 0.5
                "activation_penalty": 0.2,  # --alpha 0.2
                "temporal_penalty": 0.1,  # --beta 0.1
            },
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=10),  # --batch_size 10 --bptt 70
        train=StageConfig(
            optimizer="adamw",
            lr=3e-4,  # --lr 3e-4
            warmup_steps=3000,  # --warmup_step 3000
            epochs=125,  # --std_epochs 125
            anneal=True,
            anneal_to=1 / 3,  # --lr_min 1e-4
        ),
        # --ema_epochs 50 --ema_lr_mult 0.5
        finetune=StageConfig(optimizer="adamw", lr=5e-5, epochs=50, average_power=0.0),
    )


def ptb_transformer_mos() -> RunConfig:
    """The same Transformer with a mixture of 15 softmaxes, d = 280 as in AWD-LSTM-MoS.

    Contexts are linear, as the network ends in a norm.
    """
    softmax = ptb_transformer_softmax()
    return replace(
        softmax,
        model=replace(softmax.model, embedding_size=280),
        head=HeadConfig(kind="mos", num_components=15, dropout=0.29, activation="identity"),
    )


def wt103_gcnn() -> RunConfig:
    """A gated CNN of 125 million parameters, as deep as GCNN-14: 46 tokens of context, not 47.

    GCNN-14 of Dauphin et al. (2017) has 229 million and a test perplexity of 37.2 (table 3). Its
    sizes are in fairseq, `fconv_lm_dauphin_wikitext103`. What differs; no run was trained here:

    - Network: 15 equal bottleneck blocks with kernels of 4, 97 million parameters. There 14 layers
      of 850, 1,024 and 2,048 channels with kernels of 6, 1, 5 and 4, 99 million.
    - Embeddings: narrower where tokens are rarer, and shared with the adaptive softmax. There the
      input has 280 numbers for each token, and contexts are the last 2,048 channels.
    - Optimiser: AdamW along a cosine. There Nesterov's momentum at a rate of 1, clipped at 0.1,
      halved where valid stops falling, for at most 35 epochs.
    """
    return RunConfig(
        corpus="wikitext-103",
        model=ModelConfig(
            kind="gated-cnn",
            embedding_size=1024,
            options={
                "hidden_size": 1024,
                "num_blocks": 15,
                "bottleneck_size": 680,
                "hidden_dropout": 0.2,  # --dropout 0.2
            },
        ),
        head=HeadConfig(
            kind="adaptive-softmax",
            num_components=1,
            dropout=0.0,
            activation="identity",
            # --adaptive-softmax-cutoff 10000,20000,200000
            options={"frequent": 10_000, "cutoffs": (20_000, 200_000), "div_value": 4.0},
        ),
        batch=BatchConfig(batch_size=8, options={"bptt": 128}),  # --max-tokens 1024
        train=StageConfig(
            optimizer="adamw",
            lr=1e-3,
            weight_decay=5e-6,  # --weight-decay 5e-06
            warmup_steps=2000,
            clip=0.1,  # --clip-norm 0.1
            epochs=35,  # --max-epoch 35
            anneal=True,
        ),
        validate_every=50_000_000,
    )
