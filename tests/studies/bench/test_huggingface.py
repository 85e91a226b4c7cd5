"""A training step of a GPT-2 with different heads: the same loss, and what each needs."""

import warnings

import pytest
import torch

from highrank.studies.bench import harness, huggingface
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.huggingface import (
    BODY,
    DENSE,
    OURS,
    TINY,
    VARIANTS,
    build_gpt2,
    dense_loss,
    run_huggingface_bench,
)

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers

MIB = 2**20
PEAKS = {BODY: 100 * MIB, OURS: 150 * MIB, DENSE: 300 * MIB}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    transformers.utils.logging.set_verbosity_error()
    monkeypatch.setattr(huggingface, "QUICK", TINY)
    peaks = {**dict.fromkeys(VARIANTS), **PEAKS}
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, _: Peak(peaks[prepare.args[0]]))


def test_dense_logits_have_our_loss_and_our_gradients():
    model = build_gpt2(OURS, TINY).double()
    tokens = torch.randint(TINY.vocab_size, (1, TINY.num_tokens))
    found = []
    for loss in (model(tokens, labels=tokens).loss, dense_loss(model, tokens)):
        model.zero_grad()
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        found.append((loss.detach(), gradients))
    torch.testing.assert_close(*found)


def test_all_variants_are_measured_and_the_memory_of_a_head_is_what_it_adds_to_the_body():
    (group,) = run_huggingface_bench(rounds=1, quick=True).groups
    assert tuple(m.name for m in group.measurements) == VARIANTS
    known = {name: mib for name, mib in group.numbers["head MiB"].items() if mib is not None}
    assert known == {OURS: 50.0, DENSE: 200.0}


def test_different_losses_are_an_error(monkeypatch):
    monkeypatch.setattr(huggingface, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="all heads must have the same loss"):
        run_huggingface_bench(rounds=1, quick=True)
