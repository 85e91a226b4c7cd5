"""Use, differences and preferences of components, against loops, scipy and known mixtures."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from highrank.analysis import log_probs
from highrank.analysis.components import (
    component_report,
    mixture_use,
    model_components,
)
from highrank.heads import (
    AdaptiveMixtureOfSoftmaxes,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    Softmax,
)
from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel

T, D, K, E, V = 31, 5, 3, 4, 12
TOKENS = np.arange(40, dtype=np.uint16) % 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(log_probs, "BLOCK_BYTES", 8 * K * V * 7)


@pytest.fixture
def head():
    head = MixtureOfSoftmaxes(D, V, K, E, dropout=0.5).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


@pytest.fixture
def hidden():
    return torch.randn(T, D).double()


@pytest.fixture
def tables(head, hidden):
    """Weights (T, K) and softmaxes (T, K, V)."""
    with torch.no_grad():
        log_weight, context = head.eval().mixture(hidden)
        prob = F.linear(context, head.weight, head.bias).softmax(-1)
    head.train()
    return log_weight.exp().numpy(), prob.numpy()


def test_entropies_are_those_of_scipy(head, hidden, tables):
    weight, prob = tables
    report = component_report(head, hidden)
    assert report.weight_entropy == pytest.approx(entropy(weight, axis=1).mean())
    assert report.use_entropy == pytest.approx(entropy(weight.mean(0)))
    mixed = np.einsum("tk,tkv->tv", weight, prob)
    parts = [weight[t, k] * entropy(prob[t, k], mixed[t]) for t in range(T) for k in range(K)]
    assert report.specialisation == pytest.approx(sum(parts) / T)
    gain = entropy(weight.mean(0)) - entropy(weight, axis=1).mean()
    assert report.gate_information == pytest.approx(gain)
    assert (report.num_contexts, head.training) == (T, True)
    assert report.state == "specialised" and "I(component; token) = " in report.information


@pytest.mark.parametrize("limit, step", [(500, 1), (10, 4), (1, 31)])
def test_pairs_diverge_as_scipy_says_at_evenly_spaced_contexts(head, hidden, tables, limit, step):
    _, prob = tables
    report = component_report(head, hidden, num_pair_contexts=limit)
    chosen = range(0, T, step)
    want = [
        [np.mean([jensenshannon(prob[t, j], prob[t, k]) ** 2 for t in chosen]) for k in range(K)]
        for j in range(K)
    ]
    np.testing.assert_allclose(report.pair_divergence, want, atol=1e-12)
    assert report.num_pair_contexts == len(chosen) <= limit


def test_use_and_top_contexts_are_read_off_the_weights(head, hidden, tables):
    weight, _ = tables
    report = component_report(head, hidden, context=lambda row: (f"context {row}", f"next {row}"))
    for k, component in enumerate(report.components):
        assert component.mean_weight == pytest.approx(weight[:, k].mean())
        assert component.largest_fraction == pytest.approx((weight.argmax(1) == k).mean())
        top = np.argsort(-weight[:, k])[:5]
        assert [at.text for at in component.top_contexts] == [f"context {row}" for row in top]
        assert [at.next_token for at in component.top_contexts] == [f"next {row}" for row in top]
        found = [at.weight for at in component.top_contexts]
        assert found == pytest.approx(weight[top, k].tolist())


def test_preferred_tokens_add_most_to_the_divergence_from_all_components(head, hidden, tables):
    weight, prob = tables
    joint = np.einsum("tk,tkv->kv", weight, prob) / T
    for k, component in enumerate(component_report(head, hidden).components):
        given = joint[k] / joint[k].sum()
        gain = given * np.log(given / joint.sum(0))
        tokens = [int(preferred.token) for preferred in component.preferred]
        assert tokens == np.argsort(-gain)[:10].tolist()
        for token, preferred in zip(tokens, component.preferred, strict=True):
            assert preferred.prob == pytest.approx(given[token])
            responsibility = joint[k, token] / joint[:, token].sum()
            assert preferred.responsibility == pytest.approx(responsibility)


def make_equal(head):
    for parameter in (head.latent.weight, head.latent.bias):
        parameter.copy_(parameter[:E].repeat(K, *[1] * (parameter.dim() - 1)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (make_equal, "one softmax"),
        (lambda head: head.prior.weight.zero_(), "same in every context"),
        # One component has all the weight: as all share the output embedding, that is one softmax.
        (lambda head: head.prior.weight.mul_(1e4), "one softmax"),
    ],
)
def test_mixtures_that_are_one_softmax_or_choose_nothing_are_collapsed(
    change, reason, head, hidden
):
    with torch.no_grad():
        change(head)
    report = component_report(head, hidden)
    assert report.state == "collapsed" and reason in report.state_reason
    assert min(report.specialisation, report.gate_information) < 1e-6
    if change is make_equal:
        np.testing.assert_allclose(report.pair_divergence, 0, atol=1e-12)


def test_a_component_whose_weight_underflows_prefers_nothing(head, hidden):
    with torch.no_grad():
        head.prior.weight.zero_()
        head.prior.weight[2] = -1e5
    report = component_report(head, hidden.abs())
    assert [component.is_dead for component in report.components] == [False, False, True]
    assert report.components[2].preferred == ()
    json.dumps(asdict(report), allow_nan=False)


@pytest.mark.parametrize(("logit", "is_dead"), [(-6.0, True), (-5.0, False)])
def test_a_component_is_dead_below_a_hundredth_of_an_equal_weight(logit, is_dead, head, hidden):
    with torch.no_grad():
        head.prior.weight.zero_()
        head.prior.weight[1, 0] = logit
    hidden[:, 0] = 1.0
    assert component_report(head, hidden).components[1].is_dead is is_dead


def test_mixtures_of_contexts_and_half_precision_have_components_too(hidden):
    head = MixtureOfContexts(D, V, K, E).bfloat16()
    fractions = []
    report = component_report(
        head, hidden.bfloat16(), on_progress=lambda fraction, _: fractions.append(fraction)
    )
    assert sum(component.mean_weight for component in report.components) == pytest.approx(1)
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and len(fractions) == 5


def test_mistakes_are_named(head, hidden):
    with pytest.raises(ValueError, match="at least 2 components, got 1"):
        component_report(Softmax(D, V), hidden)
    with pytest.raises(ValueError, match="hidden must be"):
        component_report(head, hidden[0])
    with pytest.raises(ValueError, match="num_pair_contexts must be at least 1, got 0"):
        component_report(head, hidden, num_pair_contexts=0)


def model_with(head):
    return LanguageModel(AWDLSTM(8, 4, (6,)), head, tied=False).eval()


def test_components_with_a_token_each_share_all_its_information():
    head = MixtureOfSoftmaxes(6, 8, 2, 2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        # Contexts (1, -1) and (-1, 1).
        head.latent.bias.copy_(torch.tensor([20.0, -20.0, -20.0, 20.0]))
        head.weight[0, 0] = head.weight[1, 1] = 50.0
    use = mixture_use(model_with(head), TOKENS)
    assert use.specialisation == pytest.approx(math.log(2), rel=1e-5)
    assert use.effective_components == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize(
    "head", [Softmax(6, 8), MixtureOfSoftmaxes(6, 8, 1, 4), MixtureOfContexts(6, 8, 3, 4)]
)
def test_what_is_no_mixture_of_softmaxes_has_no_specialisation(head):
    assert mixture_use(model_with(head), TOKENS) is None


def test_as_many_contexts_are_read_as_asked_for():
    model = model_with(MixtureOfSoftmaxes(6, 8, 3, 4))
    five, six = (model_components(model, TOKENS, number) for number in (5, 6))
    assert five == model_components(model, TOKENS[:5]) != six
    assert six.num_contexts == 6


def test_components_of_an_adaptive_mixture_have_the_information_of_the_whole_distribution():
    """Inside the tail they agree, so that nothing is lost by looking at the tail as a whole."""
    head = AdaptiveMixtureOfSoftmaxes(6, 8, 3, 4, frequent=5)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    model = model_with(head)
    hidden = model.backbone(torch.from_numpy(TOKENS)[:, None].long(), model.initial_state(1)).hidden
    log_weight, log_q = head.component_log_prob(hidden[:, 0])
    inside = head.log_prob(hidden[:, 0])[:, 5:].log_softmax(-1)[:, None]  # (T, 1, V - 5)
    log_q = torch.cat((log_q[..., :5], log_q[..., 5:] + inside), -1)  # (T, K, V)
    mixed = torch.logsumexp(log_weight[..., None] + log_q, 1, keepdim=True)  # (T, 1, V)
    want = (log_weight.exp() * (log_q.exp() * (log_q - mixed)).sum(-1)).sum(1).mean().item()
    use = mixture_use(model, TOKENS)
    assert want > 0.01 and use.specialisation == pytest.approx(want, rel=1e-4)
    mean = log_weight.exp().mean(0)  # (K,)
    assert use.effective_components == pytest.approx(torch.special.entr(mean).sum().exp().item())
