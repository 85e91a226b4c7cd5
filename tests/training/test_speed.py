"""The speed of a machine: measured by training, also with components that have counted nothing."""

from dataclasses import replace

from highrank.build import check_run
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig
from highrank.data import senses
from highrank.data.languages import sample_corpus
from highrank.presets.small import ADAMW, RECOMMENDED
from highrank.training.speed import tokens_per_second


def test_a_run_is_timed_before_it_has_counted_anything(tmp_path):
    sizes = {"train": 2_000, "valid": 100, "test": 100}
    corpus = sample_corpus(senses(vocab_size=20, num_contexts=16, num_senses=6), sizes)
    config = RunConfig(
        corpus="senses",
        model=ModelConfig(embedding_size=8, options={"hidden_sizes": (12, 8)}),
        head=HeadConfig(kind=RECOMMENDED, num_components=1, dropout=0.0),
        batch=BatchConfig(batch_size=4, options={"bptt": 8, "bptt_std": 0.0}),
        train=replace(ADAMW, epochs=1),
        valid_batch_size=2,
    )
    assert tokens_per_second(check_run(config, corpus), budget=0.1) > 10
    assert not list(tmp_path.iterdir())
