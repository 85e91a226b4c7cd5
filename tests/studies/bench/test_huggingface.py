"""A training step of models with different heads: the same loss, and what each needs."""

import warnings

import pytest
import torch

from highrank.studies.bench import harness, huggingface
from highrank.studies.bench.harness import Peak
from highrank.studies.bench.huggingface import (
    DENSE,
    OURS,
    SIZES,
    VARIANTS,
    build_model,
    head_loss,
    hidden_states,
    run_huggingface_bench,
    tiny_size,
)

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers

MIB = 2**20
PEAKS = {OURS: 50 * MIB, DENSE: 200 * MIB}


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
    hidden = hidden_states(model, tokens)
    losses = [head_loss(name, model, hidden, tokens) for name in (OURS, DENSE)]
    for loss in (model(tokens, labels=tokens).loss, *losses):
        model.zero_grad()
        loss.backward(retain_graph=True)
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach(), gradients))
    for one in found[1:]:
        torch.testing.assert_close(one, found[0])


@pytest.mark.parametrize("kind", SIZES)
def test_all_variants_are_measured_and_the_memory_of_heads_alone(kind):
    (group,) = run_huggingface_bench(kind, rounds=1, quick=True).groups
    assert tuple(m.name for m in group.measurements) == VARIANTS
    known = {name: mib for name, mib in group.numbers["head MiB"].items() if mib is not None}
    assert known == {OURS: 50.0, DENSE: 200.0}


def test_different_losses_are_an_error(monkeypatch):
    monkeypatch.setattr(huggingface, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="all heads must have the same loss"):
        run_huggingface_bench(rounds=1, quick=True)
