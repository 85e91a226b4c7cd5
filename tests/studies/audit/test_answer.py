"""The answer: right for models whose predictions are known, and the rule at its edges."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.heads.linear import LinearHead
from highrank.studies.audit.answer import Answer, Limited, answer_of, joint_answer
from highrank.studies.audit.measure import run_audit

V, D, K = 80, 16, 4


@pytest.fixture
def answer(make):
    """The answer to a head on a table of states, on a text that follows its predictions."""

    def find(head, table, tokens=None):
        predictor = make.table(head.eval(), table)
        if tokens is None:
            with torch.no_grad():
                prob = head.log_prob(table).double().softmax(-1).numpy()
            random, tokens = np.random.default_rng(0), [0]
            for _ in range(1500):
                tokens.append(int(random.choice(V, p=prob[tokens[-1]])))
        result = run_audit([make.audited(predictor, tokens)], num_contexts=1000)
        assert result.answer == result.models[0].answer.sentence
        return result.models[0].answer

    return find


def softmax(size, weight=1.0, has_bias=True):
    torch.manual_seed(0)
    head = Softmax(size, V, bias=has_bias)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=weight)
    return head


def states(size, num_used=None):
    """As many directions as are used have the same weight, the others a thousandth of it."""
    scale = torch.where(torch.arange(size) < (num_used or size), 1.0, 1e-3)
    return torch.randn(V, size, generator=torch.Generator().manual_seed(1)) * scale


def mixture(change):
    """Four components over 16 numbers, half of which hardly matter."""
    torch.manual_seed(0)
    head = MixtureOfSoftmaxes(D, V, num_components=K, embedding_size=D)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
        head.weight[:, 4:] *= 1e-3
        change(head)
    return head


def equal_components(head):
    for parameter in (head.latent.weight, head.latent.bias):
        parameter.copy_(parameter[:D].repeat(K, *[1] * (parameter.dim() - 1)))


def fixed_weights(head):
    head.prior.weight.zero_()


@pytest.mark.parametrize("num_used, effective", [(D, 17), (4, 5)])
def test_a_spectrum_answers_nothing(answer, num_used, effective):
    found = answer(softmax(D), states(D, num_used))
    assert found.verdict is Limited.UNKNOWN
    want = (
        f"Cannot tell: rank 18 of at most 18 is used up; effective rank at 10⁻³ is {effective}, but"
    )
    assert found.sentence.startswith(want)
    assert found.sentence.endswith("`highrank audit --fit` measures it.")


def test_a_random_model_is_called_so(answer):
    tokens = np.random.default_rng(0).integers(0, V, 1500)
    found = answer(softmax(6, weight=0.02), states(6), tokens)
    assert found.sentence.startswith("Cannot tell: the model is random or untrained")
    assert "no better than that of a guess among 80 tokens" in found.sentence


def test_a_model_that_knows_frequencies_alone_is_called_so(answer):
    tokens = np.random.default_rng(0).integers(0, V // 10, 1500)
    head = softmax(6, weight=0.02)
    with torch.no_grad():
        head.bias[: V // 10] += 5
    found = answer(head, states(6), tokens)
    assert found.sentence.startswith(
        "Cannot tell: the model has hardly learned to use its contexts"
    )


@pytest.mark.parametrize(
    "change, reason",
    [
        (equal_components, "in each context the mixture predicts as one softmax does"),
        (fixed_weights, "the weights are nearly the same in every context"),
    ],
)
def test_a_collapsed_mixture_is_called_so(answer, change, reason):
    found = answer(mixture(change), states(D))
    assert f"the components have collapsed ({reason}: I(component; token) = " in found.sentence
    assert "one softmax of this size has rank at most 18" in found.sentence


def test_a_collapsed_mixture_is_called_so_even_if_it_is_untrained(answer):
    tokens = np.random.default_rng(0).integers(0, V, 1500)
    found = answer(mixture(equal_components), states(D), tokens)
    assert found.sentence.startswith("Cannot tell: the model is random or untrained")
    assert "the components have collapsed (in each context" in found.sentence


def test_a_specialised_mixture_has_no_bound(answer):
    found = answer(mixture(lambda head: None), states(D))
    assert found.sentence.startswith("No: the 4 components have specialised (I(component; token)")
    rank = re.search(r"no bound holds: numerical rank (\d+), where one softmax", found.sentence)
    assert int(rank[1]) > 2 * 18


def test_a_soft_capped_model_has_no_exact_bound(answer):
    torch.manual_seed(0)
    head = LinearHead(torch.randn(V, D), softcap=30.0)
    found = answer(head, states(D))
    assert found.sentence.startswith(
        "Cannot tell: logits are soft-capped, so that no exact bound holds, and"
    )


@pytest.mark.parametrize(
    "gain, error, own, verdict",
    [
        (0.0041, 0.001, 0.05, "yes"),
        (0.0039, 0.001, 0.05, "unknown"),
        (0.0019, 0.001, 0.009, "no"),
        (0.0019, 0.001, 0.011, "unknown"),
        (0.0019, 0.002, 0.009, "unknown"),
        (-0.01, 0.001, -0.01, "no"),
        (0.0, math.inf, 0.0, "unknown"),
    ],
)
def test_a_fit_decides(make, gain, error, own, verdict):
    assert make.softmax(fit=make.fit_facts(gain, error, own)).answer.verdict == verdict


def test_a_fit_is_put_into_words(make):
    assert make.softmax(fit=make.fit_facts()).answer.sentence == (
        "Yes: fitted to the same hidden states, a mixture of 4 softmaxes predicts held-out text "
        "3.0 % ± 0.5 % better than heads with the bound, and 4.9 % better than the model's own."
    )
    unsure = make.softmax(fit=make.fit_facts(gain=0.0)).answer.sentence
    assert unsure.endswith("own: `highrank compare` or `highrank finetune` tells.")


def test_as_many_numbers_as_tokens_express_everything(make):
    model = make.softmax()
    head = replace(model.head, context_size=999)
    found = answer_of(head, model.text, model.rank, None)
    assert found.sentence == "No: 999 numbers can express any distribution over 1,000 tokens."


def test_a_rank_above_the_bound_is_not_trusted(make):
    model, rank = make.softmax(), make.rank_facts([1.0] * 101, bound=100)
    assert answer_of(model.head, model.text, rank, None).sentence == (
        "Cannot tell: the measured rank, 101 of at most 100, cannot be trusted."
    )


def test_the_joint_answer_lists_models_by_verdict():
    answers = [
        Answer(verdict=v, sentence=f"{v}!") for v in (Limited.NO, Limited.UNKNOWN, Limited.NO)
    ]
    assert joint_answer(["a"], answers[:1]) == "no!"
    assert joint_answer(["a", "b", "c"], answers) == (
        "Does the bound of one softmax limit these models? No for a, c; cannot tell for b."
    )
