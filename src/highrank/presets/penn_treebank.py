"""Penn Treebank runs of Yang et al. (2018) and Merity et al. (2018), with their official flags."""

from dataclasses import replace

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig


def ptb_mos() -> RunConfig:
    """AWD-LSTM-MoS: 58.08 valid, 55.97 test; finetuned 56.54, 54.44 (paper, table 1)."""
    return RunConfig(
        corpus="penn-treebank",
        seed=28,  # --seed 28
        model=ModelConfig(
            embedding_size=280,  # --emsize 280
            hidden_sizes=(960, 960, 620),  # --nhid 960 --nhidlast 620 --nlayers 3
            embedding_dropout=0.1,  # --dropoute 0.1
            input_dropout=0.4,  # --dropouti 0.4
            hidden_dropout=0.225,  # --dropouth 0.225
            output_dropout=0.4,  # --dropout 0.4
            weight_dropout=0.5,  # --wdrop 0.5
        ),
        # --n_experts 15 --dropoutl 0.29
        head=HeadConfig(kind="mos", num_components=15, dropout=0.29),
        batch=BatchConfig(batch_size=12, bptt=70, bptt_max_delta=40),  # --batch_size 12 --bptt 70
        train=StageConfig(lr=20.0, epochs=1000, switch_after=5),  # --lr 20 --nonmono 5
        finetune=StageConfig(optimizer="asgd", lr=25.0, stop_after=5),  # finetune.py --lr 25
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
            hidden_sizes=(1150, 1150, 400),  # --nhid 1150 --nlayers 3
            embedding_dropout=0.1,  # --dropoute 0.1
            input_dropout=0.4,  # --dropouti 0.4
            hidden_dropout=0.25,  # --dropouth 0.25
            output_dropout=0.4,  # --dropout 0.4
            weight_dropout=0.5,  # --wdrop 0.5
        ),
        head=HeadConfig(kind="softmax", num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=20, bptt=70, bptt_max_delta=40),  # --batch_size 20 --bptt 70
        train=StageConfig(lr=30.0, epochs=500, switch_after=5),  # --lr 30 --epoch 500
        finetune=StageConfig(optimizer="asgd", lr=30.0, epochs=500, stop_after=5),
    )
