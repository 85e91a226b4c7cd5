"""A training step of models with different heads: the same loss, and what each needs."""

import warnings

import pytest
import torch

from highrank.studies.bench import harness, huggingface
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.huggingface import (
    BODY,
    DENSE,
    OURS,
    SIZES,
    VARIANTS,
    build_model,
    dense_loss,
    run_huggingface_bench,
    tiny_size,
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
    monkeypatch.setattr(huggingface, "quick_size", tiny_size)
    peaks = {**dict.fromkeys(VARIANTS), **PEAKS}
    monkeypatch.setattr(harness, "peak_memory", lambda prepare, _: Peak(peaks[prepare.args[0]]))


@pytest.mark.parametrize("kind", SIZES)
def test_dense_logits_have_our_loss_and_our_gradients(kind):
    size = tiny_size(SIZES[kind])
    model = build_model(OURS, size).double().train()
    tokens = torch.randint(size.vocab_size, size.shape)
    found = []
    for loss in (model(tokens, labels=tokens).loss, dense_loss(model, tokens)):
        model.zero_grad()
        loss.backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach(), gradients))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", SIZES)
def test_all_variants_are_measured_and_the_memory_of_a_head_is_what_it_adds_to_the_body(kind):
    (group,) = run_huggingface_bench(kind, rounds=1, quick=True).groups
    assert tuple(m.name for m in group.measurements) == VARIANTS
    known = {name: mib for name, mib in group.numbers["head MiB"].items() if mib is not None}
    assert known == {OURS: 50.0, DENSE: 200.0}


def test_different_losses_are_an_error(monkeypatch):
    monkeypatch.setattr(huggingface, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="all heads must have the same loss"):
        run_huggingface_bench(rounds=1, quick=True)
