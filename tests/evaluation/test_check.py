"""Cheating scorers are caught, each by the property it lacks; honest ones pass."""

import numpy as np
import pytest
import torch

from highrank import MixtureOfSoftmaxes, check, ngram
from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.check import Scorers, check_word, quick_check, scorers_of
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.search import Method
from highrank.evaluation.static import Scored
from highrank.evaluation.static import score as score_statically
from highrank.evaluation.temperature import TemperatureSettings
from highrank.heads.components.ngram import NGramComponent
from highrank.heads.composed import Composed
from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel
from highrank.predictor import LanguageModelPredictor

V = 13
TEXT = np.random.default_rng(0).integers(0, V, 200)
TABLE = ngram.build(TEXT, V, 3).table


def honest(tokens):
    """A trigram model, (B, L) to (B, L - 1)."""
    columns = tokens.T.numpy()
    return TABLE.log_prob_of(TABLE.contexts(columns[:-1]), columns[1:]).T


def too_much(tokens):
    return honest(tokens) + np.log(1.3)


def peeking(tokens):
    """Doubtful where the token after the target is small; the last target has none."""
    doubt = np.where(tokens[:, 2:] < V // 2, 0.5, 0.0)
    return honest(tokens) - np.pad(doubt, ((0, 0), (0, 1)))


def counts_of_target(tokens):
    """Mixed with the frequency of the hashed target alone, which is no distribution."""
    bucket = np.bincount(TEXT % 4, minlength=4) / len(TEXT)
    return np.log(0.5 * np.exp(honest(tokens)) + 0.5 * bucket[tokens[:, 1:].numpy() % 4])


def of_the_batch(tokens):
    return honest(tokens) - 0.1 * (len(tokens) - 1)


def of_the_length(tokens):
    return honest(tokens) * (1 + 1e-3 * tokens.shape[1])


class Remembering:
    """Surer whenever it has seen the text before."""

    calls = 0

    def __call__(self, tokens):
        self.calls += 1
        return honest(tokens) * (1 - 1e-3 * self.calls)


def broken(tokens):
    return np.full((len(tokens), tokens.shape[1] - 1), np.nan)


def impossible_somewhere(tokens):
    """Three tokens have no probability, which is no defect."""
    few = np.where(tokens[:, 1:] >= 3, -np.log(V - 3), -np.inf)
    return torch.from_numpy(few)


@pytest.mark.parametrize("score", [honest, impossible_somewhere])
def test_honest_scorers_pass(score):
    found = check(score, TEXT, V)
    assert all(finding.passed for finding in found), found
    assert [f.name for f in found] == ["sum", "causal", "length", "batch", "repeatable"]


@pytest.mark.parametrize(
    ("score", "name", "number"),
    [
        (too_much, "sum", "1.3"),
        (peeking, "causal", "0.5"),
        (counts_of_target, "sum", "2."),
        (of_the_batch, "batch", "0.3"),
        (of_the_length, "length", ""),
        (Remembering(), "repeatable", ""),
        (broken, "sum", "inf"),
    ],
)
def test_cheating_scorers_are_caught(score, name, number):
    found = {finding.name: finding for finding in check(score, TEXT.tolist(), V)}
    assert not found[name].passed and found[name].found > 1e-4
    assert number in found[name].sentence and "too much" in found[name].sentence


def test_a_score_that_is_not_the_distributions_is_caught():
    """The sum of the distribution is 1; the scores are another function's."""

    def distribution(tokens):
        return TABLE.log_prob(TABLE.contexts(tokens.T.numpy())[:, -1])

    for score, passed in ((honest, True), (too_much, False), (counts_of_target, False)):
        scorers = Scorers(score=score, distribution=distribution)
        found = {finding.name: finding.passed for finding in check(scorers, TEXT, V)}
        assert found["sum"] and found["target"] is passed


@pytest.fixture
def model():
    torch.manual_seed(0)
    backbone = AWDLSTM(V, 6, hidden_sizes=(8, 7))
    found = LanguageModel(backbone, MixtureOfSoftmaxes(7, V, 2, 6))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.normal_(0, 0.5)
    return found.eval()


def test_a_model_passes_in_all_its_ways(model):
    before = [parameter.clone() for parameter in model.parameters()]
    found = check(scorers_of(LanguageModelPredictor(model), model), TEXT, V)
    assert all(finding.passed for finding in found), found
    names = [finding.name for finding in found]
    assert names.count("window") == 2 and names.count("scored before learned") == 2
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)


def test_dropout_is_not_repeatable(model):
    model.train()
    model.backbone.output_dropout = 0.5
    found = {f.name: f.passed for f in check(scorers_of(LanguageModelPredictor(model)), TEXT, V)}
    assert not found["repeatable"]


def test_learning_before_scoring_is_caught(model):
    """Each segment is scored again by the model that has learned from it."""

    def too_late(tokens):
        seen = torch.nn.functional.one_hot(tokens[:, 1:], V).double()  # (B, L - 1, V)
        blocks = [block.sum(1, keepdim=True).expand_as(block) for block in seen.split(5, 1)]
        counts = torch.cat(blocks, 1) + 1
        share = counts.gather(-1, tokens[:, 1:, None])[..., 0] / counts.sum(-1)
        return share.log()

    found = check(Scorers(score=honest, adaptive={"too late": too_late}), TEXT, V)
    assert [f.name for f in found if not f.passed] == ["scored before learned"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": [1, 2, 3]}, "at least 4 tokens, got 3"),
        ({"num_contexts": 0}, "num_contexts must be at least 1, got 0"),
        ({"score": lambda tokens: tokens}, r"score must return \(4, 47\) numbers, got \(4, 48\)"),
    ],
)
def test_what_cannot_be_checked_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check(**{"score": honest, "tokens": TEXT, "vocab_size": V, **options})


@pytest.mark.parametrize("cheats", [False, True])
def test_a_quick_check_catches_components_that_are_no_distribution(cheats):
    base = MixtureOfSoftmaxes(6, V, 2, 4)
    component = NGramComponent(6, V, ngram_order=3)
    component.fit(TEXT, ())
    model = LanguageModel(AWDLSTM(V, 4, (6,)), Composed(base, [component]))
    if cheats:
        # As an entry of a public competition did: counts of the target alone.
        log_prob_of = component.log_prob_of
        component.log_prob_of = lambda inputs, target: log_prob_of(inputs, target) + 0.3
    found = quick_check(model.eval(), TEXT)
    assert [one.name for one in found] == ["sum", "target", "causal"]
    assert check_word(found) == ("FAILS target" if cheats else "checked")
    assert quick_check(LanguageModel(AWDLSTM(V, 4, (6,)), base).eval(), TEXT) is None
    assert check_word(None) == "" and quick_check(model, TEXT[:3]) is None


DISTRIBUTION, LEARNED = ["sum", "target", "causal"], ["scored before learned"]
CACHE = CacheSettings(window=9, weight=0.3)
DYNAMIC = DynamicSettings(rule="sgd", lr=0.1)
METHODS = {
    "cache": (Method(cache=CACHE), DISTRIBUTION),
    "temperature": (Method(temperature=TemperatureSettings(temperature=1.3)), DISTRIBUTION),
    "dynamic": (Method(dynamic=DYNAMIC), LEARNED),
    "dynamic+cache": (Method(dynamic=DYNAMIC, cache=CACHE), DISTRIBUTION + LEARNED),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_scores_of_each_method_are_checked(name, model):
    method, names = METHODS[name]
    found = quick_check(model, TEXT, method)
    assert [one.name for one in found] == names and check_word(found) == "checked"


def no_normaliser(model, tokens, settings):
    for one in score_statically(model, tokens):
        yield one._replace(log_prob=one.log_prob / settings.temperature)


def scored_after(model, tokens, settings, statistics):
    """As if it had learned the segment before it was scored."""
    for one in score_statically(model, tokens):
        yield Scored(one.target, one.log_prob + 0.01 * one.target.float().mean(), one.hidden)


@pytest.mark.parametrize(
    ("name", "target", "cheat", "word"),
    [
        ("cache", "cache.Block.log_cache", lambda *_: torch.zeros(()), "FAILS target"),
        ("temperature", "search.score_at", no_normaliser, "FAILS target"),
        ("dynamic", "search.score_dynamically", scored_after, "FAILS scored before learned"),
    ],
)
def test_a_method_that_cheats_is_caught(name, target, cheat, word, model, monkeypatch):
    monkeypatch.setattr(f"highrank.evaluation.{target}", cheat)
    assert check_word(quick_check(model, TEXT, METHODS[name][0])) == word
