"""Generation: the first word against log_prob, seeds, greed, and what comes with each word."""

import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch

from highrank.data.vocabulary import Vocabulary
from highrank.generation import Sampling, generate, stream
from highrank.heads import (
    Composed,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    NGramComponent,
    Pointer,
    Softmax,
)
from highrank.heads.bases.mixture import log_responsibility
from highrank.models import AWDLSTM, LanguageModel

VOCABULARY = Vocabulary(("<unk>", "<eos>", *"abcdefghi"))
V = len(VOCABULARY)
PROMPT = ["c", "a", "b"]
HEADS = {
    "softmax": lambda: Softmax(8, V, 6),
    "moc": lambda: MixtureOfContexts(8, V, 3, 6),
    "mos": lambda: MixtureOfSoftmaxes(8, V, 3, 6),
}


def build(kind):
    torch.manual_seed(1)
    backbone = AWDLSTM(V, 6, (7, 8), output_dropout=0.5, weight_dropout=0.5)
    model = LanguageModel(backbone, HEADS[kind]())
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.7)
    if kind == "mos":
        model.head.prior.weight.data.mul_(0.3)
    return model


@pytest.fixture(params=HEADS)
def model(request):
    return build(request.param)


@torch.no_grad()
def log_prob(model, words):
    """Of the word that follows a line's beginning, from one pass over all of it."""
    model.eval()
    ids = torch.from_numpy(VOCABULARY.encode(["<eos>", *words]))[:, None]
    hidden = model.backbone(ids, model.initial_state(1)).hidden
    return model.head.log_prob(hidden[-1, 0]).double()


@pytest.mark.parametrize(
    ("num_samples", "options"),
    [
        (200_000, {}),
        (20_000, {"temperature": 0.6}),
        (20_000, {"top_k": 5}),
        (20_000, {"temperature": 1.3, "top_p": 0.7}),
        (20_000, {"top_k": 5, "no_unk": True}),
    ],
    ids=str,
)
def test_first_words_match_log_prob(model, num_samples, options):
    samples = generate(model, VOCABULARY, PROMPT, num_tokens=1, num_samples=num_samples, **options)
    count = torch.from_numpy(VOCABULARY.encode(word for (word,) in samples)).bincount(minlength=V)
    log_p = log_prob(model, PROMPT)
    if "no_unk" in options:
        log_p[VOCABULARY.unk] = -math.inf
    want = (log_p / options.get("temperature", 1.0)).softmax(-1)
    order = want.argsort(descending=True)
    kept = torch.ones(V, dtype=torch.bool)
    if "top_k" in options:
        kept[order[options["top_k"] :]] = False
    if "top_p" in options:
        kept[order] = want[order].cumsum(-1) - want[order] < options["top_p"]
        assert 1 < kept.sum() < V
    assert (count[~kept] == 0).all()
    expected = num_samples * want[kept] / want[kept].sum()
    assert scipy.stats.chisquare(count[kept], expected).pvalue > 1e-3


def test_later_words_follow_their_own_sample(model):
    samples = generate(model, VOCABULARY, PROMPT, num_tokens=2, num_samples=20_000, seed=1)
    for first, _ in Counter(first for first, _ in samples).most_common(2):
        second = VOCABULARY.encode(second for word, second in samples if word == first)
        want = len(second) * log_prob(model, [*PROMPT, first]).softmax(-1)
        count = torch.from_numpy(second).bincount(minlength=V)
        # Rare words count as one: chi-square needs a few of each.
        group = torch.where(want < 10, V, torch.arange(V))
        found, expected = (
            torch.zeros(V + 1, dtype=torch.float64).index_add(0, group, x.double())
            for x in (count, want)
        )
        kept = expected > 0
        assert scipy.stats.chisquare(found[kept], expected[kept]).pvalue > 1e-4


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 5, "top_p": 0.9}], ids=str)
def test_the_same_seed_writes_the_same_text(model, options):
    options = {"num_tokens": 30, "num_samples": 3, **options}
    first, again, other = (
        generate(model, VOCABULARY, PROMPT, seed=seed, **options) for seed in (5, 5, 6)
    )
    assert first == again != other
    assert [len(sample) for sample in first] == [30] * 3 and first[0] != first[1]


@pytest.mark.parametrize("prompt", [PROMPT, []], ids=str)
def test_temperature_0_is_greedy_and_an_empty_prompt_starts_a_line(prompt, model):
    (sample,) = generate(model, VOCABULARY, prompt, num_tokens=12, temperature=0.0)
    words = list(prompt)
    for word in sample:
        assert word == VOCABULARY.tokens[log_prob(model, words).argmax()]
        words.append(word)


def test_components_are_the_most_responsible_and_change_no_word():
    model, sampling = build("mos"), Sampling(seed=3)
    options = {"num_tokens": 20, "num_samples": 1}
    with_components = list(
        stream(model, VOCABULARY, PROMPT, sampling, with_components=True, **options)
    )
    words = [step.tokens[0] for step in with_components]
    assert [words] == generate(model, VOCABULARY, PROMPT, seed=3, **options)
    ids = torch.from_numpy(VOCABULARY.encode(["<eos>", *PROMPT, *words]))[:, None]
    hidden = model.eval().backbone(ids[:-1], model.initial_state(1)).hidden[len(PROMPT) :, 0]
    want = log_responsibility(model.head, hidden, ids[len(PROMPT) + 1 :, 0]).argmax(-1)
    assert [step.components for step in with_components] == want[:, None].tolist()
    assert len(set(want.tolist())) > 1


def test_the_mode_of_the_model_comes_back(model):
    model.train()
    steps = stream(model, VOCABULARY, PROMPT, Sampling(), num_tokens=9, num_samples=2)
    first = next(steps)
    assert len(first.tokens) == 2 and first.components is None and not model.training
    steps.close()
    assert model.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"temperature": math.inf}, "temperature must be finite and at least 0, got inf"),
        ({"num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        generate(build("softmax"), VOCABULARY, **options)


def test_without_eos_there_must_be_a_prompt():
    vocabulary = Vocabulary(("a", "b", *"cdefghijk"))
    with pytest.raises(ValueError, match="the prompt must not be empty"):
        generate(build("softmax"), vocabulary, num_tokens=1)
    assert len(generate(build("softmax"), vocabulary, ["b"], num_tokens=1)) == 1


def test_a_network_without_a_state_is_refused(model, monkeypatch):
    monkeypatch.setattr(model.backbone, "initial_state", lambda batch_size: ())
    with pytest.raises(ValueError, match="must carry a state .*, got AWD-LSTM, whose windows"):
        stream(model, VOCABULARY, PROMPT, Sampling(), num_tokens=1)


def test_of_a_pointer_and_an_n_gram_the_components_are_softmax_pointer_and_n_gram():
    torch.manual_seed(0)
    pointer = Pointer(8, V, num_states=5, key_size=4, pointer_weight=0.5)
    counted = NGramComponent(8, V, ngram_order=2, ngram_weight=0.4)
    counted.fit(np.arange(200) % V, ())
    head = Composed(MixtureOfSoftmaxes(8, V, 1, 6), [pointer, counted])
    model = LanguageModel(AWDLSTM(V, 6, (8,)), head)
    options = {"num_tokens": 15, "num_samples": 1, "with_components": True}
    steps = list(stream(model, VOCABULARY, PROMPT, Sampling(), **options))
    words = [step.tokens[0] for step in steps]
    ids = torch.from_numpy(VOCABULARY.encode(["<eos>", *PROMPT, *words]))[:, None]
    out = model.eval().read(ids[:-1], model.initial_state(1))
    want = head.shares(out.hidden, ids[1:], **out.past)[len(PROMPT) :, 0].argmax(-1)
    assert [step.components for step in steps] == want[:, None].tolist()
    assert set(want.tolist()) == {0, 1, 2}
