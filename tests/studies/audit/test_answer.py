"""The answer: right for models whose predictions are known, and the rule at its edges."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.integrations.huggingface.output_layer import OutputLayer
from highrank.studies.audit.answer import answer_of, continued, joint_answer
from highrank.studies.audit.layer import head_layer, hugging_face_layer
from highrank.studies.audit.measure import run_audit
from highrank.studies.audit.model import AuditedModel, LoadedModel
from highrank.studies.audit.result import Answer

V, D, K = 80, 16, 4


def answer(layer, table, tokens=None):
    """Of a model whose state is that of its last token, on a text that follows its predictions."""
    prob = torch.cat(list(layer.log_probs(table, torch.float64).blocks())).exp().numpy()
    random = np.random.default_rng(0)
    if tokens is None:
        tokens = [0]
        for _ in range(1500):
            tokens.append(int(random.choice(V, p=prob[tokens[-1]])))
    loaded = LoadedModel(
        architecture="table", num_parameters=7, layer=layer, hidden_states=lambda t: table[t]
    )
    model = AuditedModel(
        name="it",
        source="run",
        tokens=np.array(tokens),
        text="sampled",
        text_sha256="0",
        window=16,
        token=str,
        load=lambda: loaded,
    )
    result = run_audit([model], num_contexts=1000)
    assert result.answer == result.models[0].answer.sentence
    return result.models[0].answer


def softmax(size, weight=1.0, has_bias=True):
    torch.manual_seed(0)
    head = Softmax(size, V, bias=has_bias)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=weight)
    return head_layer(head.eval(), is_tied=False, hidden_bound=None)


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
    return head_layer(head.eval(), is_tied=False, hidden_bound=None)


def equal_components(head):
    for parameter in (head.latent.weight, head.latent.bias):
        parameter.copy_(parameter[:D].repeat(K, *[1] * (parameter.dim() - 1)))


def fixed_weights(head):
    head.prior.weight.zero_()


def test_a_trained_softmax_at_its_bound_is_limited():
    found = answer(softmax(6), states(6))
    assert found.verdict == "yes"
    want = "Yes: rank 8 of at most 8 is used up; effective rank at 10⁻⁴ is 8: the spectrum is cut"
    assert found.sentence.startswith(want)


def test_a_trained_softmax_below_its_bound_is_not():
    found = answer(softmax(D), states(D, num_used=4))
    assert found.verdict == "no"
    assert "rank 18 of at most 18 is used up; effective rank at 10⁻³ is 5" in found.sentence
    assert found.sentence.endswith("the bound is not what limits this model.")


def test_a_random_model_is_called_so():
    tokens = np.random.default_rng(0).integers(0, V, 1500)
    found = answer(softmax(6, weight=0.02), states(6), tokens)
    assert found.sentence.startswith("Cannot tell: the model is random or untrained")
    assert "no better than that of a guess among 80 tokens" in found.sentence


def test_a_model_that_knows_frequencies_alone_is_called_so():
    tokens = np.random.default_rng(0).integers(0, V // 10, 1500)
    layer = softmax(6, weight=0.02)
    layer.vectors.bias[: V // 10] += 5
    found = answer(layer, states(6), tokens)
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
def test_a_collapsed_mixture_is_called_so(change, reason):
    found = answer(mixture(change), states(D))
    assert f"the components have collapsed ({reason}: I(component; token) = " in found.sentence
    assert "one softmax of this size has rank at most 18" in found.sentence


def test_a_collapsed_mixture_is_called_so_even_if_it_is_untrained():
    tokens = np.random.default_rng(0).integers(0, V, 1500)
    found = answer(mixture(equal_components), states(D), tokens)
    assert found.sentence.startswith("Cannot tell: the model is random or untrained")
    assert "the components have collapsed (in each context" in found.sentence


def test_a_specialised_mixture_has_no_bound():
    found = answer(mixture(lambda head: None), states(D))
    assert found.sentence.startswith("No: the 4 components have specialised (I(component; token)")
    rank = re.search(r"no bound holds: numerical rank (\d+), where one softmax", found.sentence)
    assert int(rank[1]) > 2 * 18


def test_a_soft_capped_model_has_no_exact_bound():
    torch.manual_seed(0)
    weight = torch.randn(V, D)
    layer = OutputLayer(weight=weight, bias=None, scale=1.0, softcap=30.0, is_tied=False)
    found = answer(hugging_face_layer(layer), states(D, num_used=4))
    assert found.sentence.startswith(
        "No: logits are soft-capped, so that no exact bound holds, and"
    )
    assert found.sentence.endswith("the bound is not what limits this model.")
    full = answer(hugging_face_layer(layer), states(D))
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


def test_a_small_bound_is_reached_without_the_direction_that_a_layer_norm_takes():
    normalised = torch.nn.functional.layer_norm(states(6), (6,))
    found = answer(softmax(6, has_bias=False), normalised)
    assert found.verdict == "yes"
    assert "rank 6 of at most 7 is used up; effective rank at 10⁻⁴ is 6:" in found.sentence


def test_a_rank_that_is_not_used_up_is_no_limit(ruled):
    found = ruled(60, 70, found=80)
    assert found.verdict == "no" and "rank 80 of at most 100 is not used up" in found.sentence


def test_of_few_contexts_the_rank_is_continued(ruled):
    few = {"num_contexts": 100}
    assert "would be about 50 of 200 contexts" in ruled(40, 60, half=32, **few).sentence
    assert ruled(40, 60, half=32, **few).verdict == "no"
    assert ruled(40, 60, half=20, **few).verdict == "unknown"
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
    answers = [Answer(verdict=v, sentence=f"{v}!") for v in ("no", "unknown", "no")]
    assert joint_answer(["a"], answers[:1]) == "no!"
    assert joint_answer(["a", "b", "c"], answers) == (
        "Does the bound of one softmax limit these models? No for a, c; cannot tell for b."
    )
