"""Contexts of a fit: of all heads with one softmax, with what a fit leaves as it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.build import build_model
from highrank.config import HeadConfig, ModelConfig, RunConfig
from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.heads.linear import LinearHead
from highrank.predictor import LanguageModelPredictor
from highrank.studies.audit import samples as module
from highrank.studies.audit.fit import batch_loss, fit_heads
from highrank.studies.audit.samples import log_prob_of, read_material, why_not

V, D = 20, 8


@pytest.mark.parametrize(
    "head, num_tokens, limit, reason",
    [
        (Softmax(D, V), 4500, {}, ""),
        (LinearHead(torch.randn(V, D)), 4500, {}, ""),
        (MixtureOfSoftmaxes(D, V, 2, 3), 4500, {}, "one softmax only"),
        (MixtureOfContexts(D, V, 2, 3), 4500, {}, "one softmax only"),
        (Softmax(D, V), 4500, {"READING": 6_000}, "too large"),
        (Softmax(D, V), 3000, {}, "too short"),
    ],
)
def test_what_cannot_be_fitted_says_why(make, monkeypatch, head, num_tokens, limit, reason):
    for name, value in limit.items():
        monkeypatch.setattr(module, name, value)
    predictor = make.predictor(head, D)
    found = why_not(predictor, make.audited(predictor, num_tokens=num_tokens))
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize("has_train", [True, False])
def test_samples_follow_the_text_and_do_not_overlap(make, has_train):
    predictor = make.predictor(Softmax(6, 400))
    tokens, train = np.arange(300), np.arange(300, 400)
    model = replace(make.audited(predictor, tokens), train=train if has_train else None)
    found = read_material(predictor, model)
    assert found.head is predictor.head and found.part == ""
    for sample in found.samples:
        torch.testing.assert_close(sample.hidden, predictor.table[sample.target - 1])
    seen = torch.cat([sample.target for sample in found.samples])
    assert len(seen.unique()) == len(seen)
    first = 300 if has_train else 0
    assert found.samples.learned.target.min() == first + 1
    assert found.samples.held_out.target.max() == 299
    assert len(found.samples.held_out.target) > len(found.samples.chosen.target)


KINDS = {
    "softmax+pointer": ({}, " beside pointer"),
    "mos+ngram": ({}, " beside ngram"),
    "softmax+constant": ({}, " beside constant"),
    "adaptive-softmax": ({"frequent": 9}, " over the 9 most frequent tokens"),
    "adaptive-softmax+pointer+ngram": (
        {"frequent": 9, "cutoffs": (15,)},
        " over the 9 most frequent tokens, beside pointer and ngram",
    ),
}


def run_predictor(kind, options):
    """A predictor with random weights of a run's model, whose n-grams are those of `TEXT`."""
    torch.manual_seed(0)
    counts = np.bincount(TEXT, minlength=V).tolist()
    config = RunConfig(
        corpus="none",
        model=ModelConfig(embedding_size=D, options={"hidden_sizes": (D, D)}),
        head=HeadConfig(kind=kind, num_components=1, options=options),
    )
    model = build_model(config, V, counts).eval()
    for component in model.head.modules():
        if hasattr(component, "fit"):
            component.fit(TEXT, counts)
    return LanguageModelPredictor(model)


TEXT = np.random.default_rng(0).integers(0, V, 400) // 2 * np.array([1, 2] * 200) % V


def streams_of(tokens):
    size = len(tokens) // module.NUM_STREAMS
    return torch.from_numpy(tokens[: size * module.NUM_STREAMS].reshape(-1, size).T.copy())


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_a_head_have_its_probabilities(make, kind):
    options, part = KINDS[kind]
    predictor = run_predictor(kind, options)
    model = replace(make.audited(predictor, TEXT), train=TEXT)
    found = read_material(predictor, model)
    assert found.part == part
    sample = found.samples.held_out
    log_p = sample.log_prob(log_prob_of(found.head, sample.hidden, sample.target))
    text = TEXT[len(TEXT) // 3 :]
    if predictor.head.is_stateful:
        data = streams_of(text)
        with torch.no_grad():
            read = predictor.model.read(data[:-1], predictor.initial_state(data.shape[1]))
            want = predictor.head.log_prob(read.hidden, **read.past).gather(-1, data[1:, :, None])
    else:
        targets = torch.from_numpy(text)[1:, None]
        want = predictor.head.log_prob(sample.hidden).gather(-1, targets)[:, None]
    torch.testing.assert_close(log_p, want[..., 0].T.flatten())
    is_whole = found.samples.learned.log_rest is None
    assert is_whole == ("pointer" not in kind and "constant" not in kind)


def test_a_fit_keeps_what_is_beside_the_softmax(make):
    predictor = run_predictor("adaptive-softmax+pointer+ngram", {"frequent": 9})
    found = read_material(predictor, replace(make.audited(predictor, TEXT), train=TEXT))
    facts = fit_heads(found.head, found.samples, part=found.part, num_steps=3)
    held_out = found.samples.held_out
    log_q = log_prob_of(found.head, held_out.hidden, held_out.target)
    assert facts.nats == pytest.approx(-held_out.log_prob(log_q).mean().item(), abs=1e-6)
    assert facts.part == found.part and facts.num_steps == 3
    torch.testing.assert_close(batch_loss(found.head, held_out).item(), facts.nats)


@pytest.mark.parametrize("head", ["linear", "softmax", "latent"])
def test_a_large_head_is_fitted_over_the_tokens_of_the_text(make, monkeypatch, head):
    monkeypatch.setattr(module, "LARGEST_HEAD", 10)
    heads = {
        "linear": lambda: LinearHead(torch.randn(100, 3), torch.randn(100), softcap=2.0, scale=0.7),
        "softmax": lambda: Softmax(3, 100),
        "latent": lambda: Softmax(3, 100, 2),
    }
    torch.manual_seed(0)
    predictor = make.predictor(heads[head](), 3)
    tokens = np.random.default_rng(0).integers(40, 60, 300)
    found = read_material(predictor, make.audited(predictor, tokens))
    width = found.head.weight.shape[1]
    assert len(found.head.weight) == 20 + module.LEAST_COLUMNS * width
    assert found.part == f" over {len(found.head.weight)} tokens of the text"
    for sample in found.samples:
        log_p = sample.log_prob(log_prob_of(found.head, sample.hidden, sample.target))
        whole = predictor.head.log_prob(sample.hidden)
        kept = torch.cat([torch.arange(module.LEAST_COLUMNS * width), torch.arange(40, 60)])
        want = whole.gather(1, kept[sample.target][:, None])[:, 0]
        torch.testing.assert_close(log_p, want)
