"""Runs of Yang, Merity and Takase et al. (all 2018), with the flags of their official code.

The code has none for text8: there the sizes are those that give the printed numbers of parameters,
and everything about training is our choice. No such run was trained to its end here.
"""

from dataclasses import replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig


def ptb_mos() -> RunConfig:
    """AWD-LSTM-MoS: 58.08 valid, 55.97 test; finetuned 56.54, 54.44 (paper, table 1)."""
    return RunConfig(
        corpus="penn-treebank",
        seed=28,  # --seed 28
        model=ModelConfig(
            embedding_size=280,  # --emsize 280
            options={
                "hidden_sizes": (960, 960, 620),  # --nhid 960 --nhidlast 620 --nlayers 3
                "embedding_dropout": 0.1,  # --dropoute 0.1
                "input_dropout": 0.4,  # --dropouti 0.4
                "hidden_dropout": 0.225,  # --dropouth 0.225
                "output_dropout": 0.4,  # --dropout 0.4
                "weight_dropout": 0.5,  # --wdrop 0.5
                "activation_penalty": 2.0,  # --alpha 2
                "temporal_penalty": 1.0,  # --beta 1
            },
        ),
        # --n_experts 15 --dropoutl 0.29
        head=HeadConfig(kind="mos", num_components=15, dropout=0.29),
        batch=BatchConfig(batch_size=12),  # --batch_size 12 --bptt 70 --max_seq_len_delta 40
        train=StageConfig(lr=20.0, epochs=1000, switch_after=5),  # --lr 20 --nonmono 5
        finetune=StageConfig(optimizer="asgd", lr=25.0, stop_after=5),  # finetune.py --lr 25
    )


def ptb_doc() -> RunConfig:
    """AWD-LSTM-DOC: finetuned 54.12 valid, 52.38 test (Takase et al.)."""
    mos = ptb_mos()
    return replace(
        mos,
        # --n_experts 15 --num4second 5 --var 0.001 --dropoutl 0.6
        head=HeadConfig(kind="doc", num_components=20, dropout=0.6),
        train=replace(mos.train, epochs=500, switch_after=60),  # --epoch 500 --nonmono 60
        finetune=StageConfig(optimizer="asgd", lr=20.0, epochs=500, stop_after=60),  # --lr 20.0
    )


def ptb_moc() -> RunConfig:
    """AWD-LSTM-MoC: 59.82 valid, 57.55 test without finetuning (paper, table 5)."""
    mos = ptb_mos()
    return replace(mos, head=replace(mos.head, kind="moc"))


def ptb_softmax() -> RunConfig:
    """AWD-LSTM: 60.7 valid, 58.8 test; finetuned 60.0, 57.3 (Merity et al., table 1)."""
    return RunConfig(
        corpus="penn-treebank",
        seed=141,  # --seed 141
        model=ModelConfig(
            embedding_size=400,  # --emsize 400
            options={
                "hidden_sizes": (1150, 1150, 400),  # --nhid 1150 --nlayers 3
                "embedding_dropout": 0.1,  # --dropoute 0.1
                "input_dropout": 0.4,  # --dropouti 0.4
                "hidden_dropout": 0.25,  # --dropouth 0.25
                "output_dropout": 0.4,  # --dropout 0.4
                "weight_dropout": 0.5,  # --wdrop 0.5
                "activation_penalty": 2.0,  # --alpha 2
                "temporal_penalty": 1.0,  # --beta 1
            },
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=20),  # --batch_size 20 --bptt 70
        train=StageConfig(lr=30.0, epochs=500, switch_after=5),  # --lr 30 --epoch 500
        finetune=StageConfig(optimizer="asgd", lr=30.0, epochs=500, stop_after=5),
    )


def wt2_mos() -> RunConfig:
    """AWD-LSTM-MoS: 66.01 valid, 63.33 test; finetuned 63.88, 61.45 (paper, table 2)."""
    return RunConfig(
        corpus="wikitext-2",
        seed=1882,  # --seed 1882
        model=ModelConfig(
            embedding_size=300,  # --emsize 300
            options={
                "hidden_sizes": (1150, 1150, 650),  # --nhid 1150 --nhidlast 650 --nlayers 3
                "embedding_dropout": 0.1,  # --dropoute 0.1
                "input_dropout": 0.55,  # --dropouti 0.55
                "hidden_dropout": 0.2,  # --dropouth 0.2
                "output_dropout": 0.4,  # --dropout 0.4
                "weight_dropout": 0.5,  # --wdrop 0.5
                "activation_penalty": 2.0,  # --alpha 2
                "temporal_penalty": 1.0,  # --beta 1
            },
        ),
        # --n_experts 15 --dropoutl 0.29
        head=HeadConfig(kind="mos", num_components=15, dropout=0.29),
        # --batch_size 15 --small_batch_size 5 --bptt 70 --max_seq_len_delta 20
        batch=BatchConfig(batch_size=15, micro_batch_size=5, options={"bptt_max_delta": 20}),
        train=StageConfig(lr=15.0, epochs=1000, switch_after=5),  # --lr 15.0
        finetune=StageConfig(optimizer="asgd", lr=20.0, stop_after=5),  # finetune.py --lr 20
    )


def wt2_doc() -> RunConfig:
    """AWD-LSTM-DOC: finetuned 60.29 valid, 58.03 test (Takase et al.)."""
    mos = wt2_mos()
    return replace(
        mos,
        # --n_experts 15 --num4second 5 --var 0.001 --dropoutl 0.6
        head=HeadConfig(kind="doc", num_components=20, dropout=0.6),
        train=replace(mos.train, epochs=500, switch_after=60),  # --epochs 500 --nonmono 60
        finetune=StageConfig(optimizer="asgd", lr=15.0, epochs=500, stop_after=60),  # --lr 15.0
    )


def wt2_moc() -> RunConfig:
    """AWD-LSTM-MoC: 68.76 valid, 65.98 test without finetuning (paper, table 5)."""
    mos = wt2_mos()
    return replace(mos, head=replace(mos.head, kind="moc"))


def wt2_softmax() -> RunConfig:
    """AWD-LSTM: 69.1 valid, 66.0 test; finetuned 68.6, 65.8 (Merity et al., table 2)."""
    return RunConfig(
        corpus="wikitext-2",
        seed=1882,  # --seed 1882
        model=ModelConfig(
            embedding_size=400,  # --emsize 400
            options={
                "hidden_sizes": (1150, 1150, 400),  # --nhid 1150 --nlayers 3
                "embedding_dropout": 0.1,  # --dropoute 0.1
                "input_dropout": 0.65,  # --dropouti 0.65
                "hidden_dropout": 0.2,  # --dropouth 0.2
                "output_dropout": 0.4,  # --dropout 0.4
                "weight_dropout": 0.5,  # --wdrop 0.5
                "activation_penalty": 2.0,  # --alpha 2
                "temporal_penalty": 1.0,  # --beta 1
            },
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=80),  # --batch_size 80 --bptt 70
        train=StageConfig(lr=30.0, epochs=750, switch_after=5),  # --lr 30 --epochs 750
        finetune=StageConfig(optimizer="asgd", lr=30.0, epochs=750, stop_after=5),
    )


def text8_softmax() -> RunConfig:
    """One softmax over 27 characters, 8.42 M parameters: 1.41 valid, 1.49 test, bits each.

    Yang et al., table 12: the rank of log-probabilities cannot exceed 27, so there is no
    bottleneck, and a mixture should not help. docs/training.md says how the corpus is made.
    """
    return RunConfig(
        corpus="text8",
        model=ModelConfig(embedding_size=1024, options={"hidden_sizes": (1024,)}),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=64, options={"bptt": 100}),
        train=StageConfig(
            optimizer="adamw", lr=1e-3, warmup_steps=1000, clip=1.0, epochs=10, anneal=True
        ),
        validate_every=10_000_000,
    )


def text8_mos() -> RunConfig:
    """The mixture of seven softmaxes, 8.45 M parameters: 1.40 valid, 1.49 test, bits each."""
    softmax = text8_softmax()
    return replace(
        softmax,
        model=ModelConfig(embedding_size=510, options={"hidden_sizes": (910,)}),
        head=HeadConfig(kind="mos", num_components=7, dropout=0.0),
    )
