"""Heads of every kind that grow in a run: interrupted, resumed, loaded."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from highrank.build import build_model
from highrank.config import HeadConfig, StageConfig
from highrank.heads import HEADS, head_class
from highrank.heads.growth import can_grow
from highrank.run import load
from highrank.training.loop import Run

OPTIONS = {"pointer": {"num_states": 5}, "constant": {"num_topics": 2}, "low-rank-mos": {"rank": 2}}
KINDS = [kind for kind in HEADS if kind != "mos" and can_grow(head_class(kind))]


@pytest.fixture(params=KINDS)
def growing(request, config):
    """Two epochs, the second with three components."""
    kind = request.param
    options = OPTIONS.get(kind, {})
    head = HeadConfig(kind=kind, num_components=3, dropout=0.1, grow_at=2, options=options)
    stage = StageConfig(optimizer="adamw", lr=0.01, epochs=2, clip=1.0)
    return replace(config, head=head, train=stage, finetune=None)


def test_a_run_that_grows_is_interrupted_and_resumed(growing, corpus, tmp_path):
    def interrupt(progress):
        if progress.step == 40:
            os.kill(os.getpid(), signal.SIGINT)

    Run(growing, corpus, tmp_path / "whole").go()
    parts = tmp_path / "parts"
    assert Run(growing, corpus, parts, on_progress=interrupt).go().reason == "interrupted"
    # It has grown, and the best model so far is from before.
    assert load(parts)[0].head.num_components == 1
    Run(growing, corpus, parts).go()
    models = [load(folder)[0] for folder in (tmp_path / "whole", parts)]
    assert all(model.head.num_components == 3 for model in models)
    torch.testing.assert_close(*(model.state_dict() for model in models), rtol=0, atol=0)


def test_a_head_that_is_to_grow_has_the_frequent_tokens_of_the_grown_one(config):
    config = replace(config, head=HeadConfig(kind="adaptive-mos", num_components=3, grow_at=0.5))
    counts = [1000 // (1 + token) for token in range(50)]
    one, three = (build_model(config, 50, K, token_counts=counts).head for K in (1, None))
    assert (one.num_components, three.num_components) == (1, 3)
    assert one.num_frequent == three.num_frequent
