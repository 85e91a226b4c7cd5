"""The answer: right for models whose predictions are known, and the rule at its edges."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.heads.linear import LinearHead
from highrank.studies.audit.answer import Answer, Limited, answer_of, continued, joint_answer
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


def test_a_trained_softmax_at_its_bound_is_limited(answer):
    found = answer(softmax(6), states(6))
    assert found.verdict is Limited.YES
    want = "Yes: rank 8 of at most 8 is used up; effective rank at 10⁻⁴ is 8: the spectrum is cut"
    assert found.sentence.startswith(want)


def test_a_trained_softmax_below_its_bound_is_not(answer):
    found = answer(softmax(D), states(D, num_used=4))
    assert found.verdict is Limited.NO
    assert "rank 18 of at most 18 is used up; effective rank at 10⁻³ is 5" in found.sentence
    assert found.sentence.endswith("the bound is not what limits this model.")


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
    found = answer(head, states(D, num_used=4))
    assert found.sentence.startswith(
        "No: logits are soft-capped, so that no exact bound holds, and"
    )
    assert found.sentence.endswith("the bound is not what limits this model.")
    full = answer(head, states(D))
    assert full.sentence.startswith("Cannot tell: logits are soft-capped")
    assert full.sentence.endswith("the model is past what one softmax can do.")


@pytest.fixture
def ruled(make):
    """The answer to facts with these effective ranks, of a softmax with the bound 100."""

    def build(effective, fine, half=None, **options):
        def measures(rank, at):
            return make.measures(rank, rank) | {
                "effective_rank_1e-3": at,
                "effective_rank_1e-4": fine,
            }

        found = options.pop("found", 100)
        rank = make.rank_facts([1.0], bound=100, measures=measures(found, effective), **options)
        before = replace(rank.growth[0], measures=measures(found, half or effective))
        model, rank = make.softmax(), replace(rank, growth=(before, rank.growth[1]))
        return answer_of(model.head, model.text, rank, None)

    return build


@pytest.mark.parametrize(
    "effective, fine, verdict",
    [(50, 89, "no"), (51, 89, "unknown"), (51, 90, "yes"), (50, 90, "yes"), (95, 100, "yes")],
)
def test_fractions_of_the_bound_decide(ruled, effective, fine, verdict):
    assert ruled(effective, fine).verdict == verdict


def test_a_small_bound_is_reached_without_the_direction_that_a_layer_norm_takes(answer):
    normalised = torch.nn.functional.layer_norm(states(6), (6,))
    found = answer(softmax(6, has_bias=False), normalised)
    assert found.verdict is Limited.YES
    assert "rank 6 of at most 7 is used up; effective rank at 10⁻⁴ is 6:" in found.sentence


def test_a_rank_that_is_not_used_up_is_no_limit(ruled):
    found = ruled(60, 70, found=80)
    assert found.verdict is Limited.NO and "rank 80 of at most 100 is not used up" in found.sentence


def test_of_few_contexts_the_rank_is_continued(ruled):
    few = {"num_contexts": 100}
    assert "would be about 50 of 200 contexts" in ruled(40, 60, half=32, **few).sentence
    assert ruled(40, 60, half=32, **few).verdict is Limited.NO
    assert ruled(40, 60, half=20, **few).verdict is Limited.UNKNOWN
    fewer = ruled(30, 40, half=15, found=50, num_contexts=50)
    assert fewer.sentence.endswith("take more contexts (--contexts).")
    tokens = ruled(30, 40, half=15, found=50, num_tokens=50)
    assert tokens.sentence.endswith("take more tokens (free memory).")


def test_without_two_sizes_the_rank_counts_as_one_per_context(make):
    rank = make.rank_facts([1.0], num_contexts=10)
    assert continued(replace(rank, growth=rank.growth[:1]), 40) == 40
    assert continued(rank, 5) == rank.measures["effective_rank_1e-3"]


def test_as_many_numbers_as_tokens_express_everything(make):
    model = make.softmax()
    head = replace(model.head, context_size=999)
    found = answer_of(head, model.text, model.rank, None)
    assert found.sentence == "No: 999 numbers can express any distribution over 1,000 tokens."


def test_a_rank_above_the_bound_is_not_trusted(ruled):
    assert ruled(50, 60, found=101).sentence == (
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
