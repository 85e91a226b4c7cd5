"""A training step of a GPT-2 with different heads: the same loss, and what each needs."""

import warnings

import pytest
import torch

from highrank.heads import LowRankMixture
from highrank.studies.bench import harness, huggingface
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.huggingface import (
    BODY,
    DENSE,
    OURS,
    TINY,
    VARIANTS,
    DenseMixture,
    beyond_body,
    run_huggingface_bench,
)
from highrank.studies.bench.table import huggingface_table

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers

PEAKS = {BODY: 100, OURS: 150, DENSE: 300}


def test_dense_logits_have_our_loss_and_our_gradients():
    hidden, target = torch.randn(2, 5, 6).double(), torch.randint(50, (2, 5))
    found = []
    for kind in (LowRankMixture, DenseMixture):
        torch.manual_seed(1)
        head = kind(6, 50, 3, None, rank=2).double()
        head(hidden, target).loss.backward()
        found.append({name: p.grad for name, p in head.named_parameters()})
    torch.testing.assert_close(found[0], found[1])


def test_the_memory_of_a_head_is_what_it_adds_to_the_body():
    assert beyond_body(PEAKS) == {OURS: 50, DENSE: 200}
    assert beyond_body({BODY: None, OURS: 3}) == {OURS: None}


def test_all_variants_are_measured_with_the_same_loss(monkeypatch):
    transformers.utils.logging.set_verbosity_error()
    monkeypatch.setattr(huggingface, "QUICK", TINY)
    monkeypatch.setattr(
        harness, "peak_memory", lambda prepare, _: Peak(PEAKS.get(prepare.args[0], 200))
    )
    result = run_huggingface_bench(rounds=1, quick=True)
    assert tuple(m.name for m in result.measurements) == VARIANTS
    assert result.head_bytes[OURS] == 50 and result.dense_ratio == 4.0
    table = huggingface_table(result)
    assert len(table.rows) == len(VARIANTS) and "needs 4.0 times" in table.caption


def test_different_losses_are_an_error(monkeypatch):
    monkeypatch.setattr(huggingface, "QUICK", TINY)
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(1))
    monkeypatch.setattr(huggingface, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="all heads must have the same loss"):
        run_huggingface_bench(rounds=1, quick=True)
