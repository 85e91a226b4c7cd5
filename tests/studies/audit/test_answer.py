"""The answer: right for models whose predictions are known, and the rule at its edges."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.heads.linear import LinearHead
from highrank.studies.audit.answer import Answer, Limited, answer_of, continued, joint_answer
from highrank.studies.audit.measure import run_audit

V, D, K = 80, 16, 4


def softmax(size, weight=1.0, has_bias=True):
    torch.manual_seed(0)
    head = Softmax(size, V, bias=has_bias)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=weight)
    return head


def softcapped():
    torch.manual_seed(0)
    return LinearHead(torch.randn(V, D), softcap=30.0)


def frequencies():
    """Knows which tokens are frequent, and nothing else."""
    head = softmax(6, weight=0.02)
    with torch.no_grad():
        head.bias[: V // 10] += 5
    return head


def states(size, num_used=None):
    """As many directions as are used have the same weight, the others a thousandth of it."""
    scale = torch.where(torch.arange(size) < (num_used or size), 1.0, 1e-3)
    return torch.randn(V, size, generator=torch.Generator().manual_seed(1)) * scale


def mixture(change=lambda head: None):
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


def random_tokens(num_words=V):
    return np.random.default_rng(0).integers(0, num_words, 1500)


def tokens_of(head, table):
    """A text that follows the head's predictions."""
    with torch.no_grad():
        prob = head.log_prob(table).double().softmax(-1).numpy()
    random, tokens = np.random.default_rng(0), [0]
    for _ in range(1500):
        tokens.append(int(random.choice(V, p=prob[tokens[-1]])))
    return tokens


# Head, hidden states, and the tokens where they do not follow the head's predictions.
CASES = {
    "a softmax at its bound": (softmax(6), states(6)),
    "a softmax below its bound": (softmax(D), states(D, num_used=4)),
    "a small bound, a LayerNorm": (
        softmax(6, has_bias=False),
        torch.nn.functional.layer_norm(states(6), (6,)),
    ),
    "a random softmax": (softmax(6, weight=0.02), states(6), random_tokens()),
    "frequencies alone": (frequencies(), states(6), random_tokens(V // 10)),
    "equal components": (mixture(equal_components), states(D)),
    "fixed weights": (mixture(fixed_weights), states(D)),
    "equal components, untrained": (mixture(equal_components), states(D), random_tokens()),
    "a specialised mixture": (mixture(), states(D)),
    "a softcap below the bound": (softcapped(), states(D, num_used=4)),
    "a softcap": (softcapped(), states(D)),
}


def test_models_whose_predictions_are_known_are_answered_as_approved(make, approve):
    found = {}
    for name, (head, table, *tokens) in CASES.items():
        predictor = make.table(head.eval(), table)
        text = make.audited(predictor, *(tokens or [tokens_of(head, table)]))
        result = run_audit([text], num_contexts=1000)
        assert result.answer == result.models[0].answer.sentence
        found[name] = result.answer
    approve("answers.txt", "\n".join(f"{name}: {sentence}" for name, sentence in found.items()))


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
    "effective, fine, options, verdict",
    [
        (50, 89, {}, "below"),
        (51, 89, {}, "unknown"),
        (51, 90, {}, "yes"),
        (50, 90, {}, "yes"),
        (95, 100, {}, "yes"),
        # Not used up; not to be trusted; continued from few contexts.
        (60, 70, {"found": 80}, "below"),
        (50, 60, {"found": 101}, "unknown"),
        (40, 60, {"half": 32, "num_contexts": 100}, "below"),
        (40, 60, {"half": 20, "num_contexts": 100}, "unknown"),
    ],
)
def test_fractions_of_the_bound_decide(ruled, effective, fine, options, verdict):
    found, is_below = ruled(effective, fine, **options), verdict == "below"
    assert found.verdict == ("unknown" if is_below else verdict)
    assert ("well below it, and yet a mixture may win" in found.sentence) == is_below


def test_what_there_is_too_little_of_is_named(ruled):
    few = {"half": 15, "found": 50}
    assert ruled(30, 40, **few, num_contexts=50).sentence.endswith("contexts (--contexts).")
    assert ruled(30, 40, **few, num_tokens=50).sentence.endswith("tokens (free memory).")


def test_without_two_sizes_the_rank_counts_as_one_per_context(make):
    rank = make.rank_facts([1.0], num_contexts=10)
    assert continued(replace(rank, growth=rank.growth[:1]), 40) == 40
    assert continued(rank, 5) == rank.measures["effective_rank_1e-3"]


def test_as_many_numbers_as_tokens_express_everything(make):
    model = make.softmax()
    head = replace(model.head, context_size=999)
    assert answer_of(head, model.text, model.rank, None).verdict is Limited.NO


def test_the_joint_answer_lists_models_by_verdict():
    answers = [
        Answer(verdict=v, sentence=f"{v}!") for v in (Limited.NO, Limited.UNKNOWN, Limited.NO)
    ]
    assert joint_answer(["a"], answers[:1]) == "no!"
    assert joint_answer(["a", "b", "c"], answers).endswith(" No for a, c; cannot tell for b.")
