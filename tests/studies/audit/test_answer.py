"""The answer: right for models whose predictions are known, and the rule at its edges."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.heads.linear import LinearHead
from highrank.studies.audit.answer import (
    ENOUGH_STEPS,
    FREE,
    LEAST_STEPS,
    LIMITED,
    SETTLED,
    Answer,
    Limited,
    answer_of,
    joint_answer,
)
from highrank.studies.audit.measure import run_audit
from highrank.studies.audit.model import Source

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


@pytest.mark.parametrize(
    "gain, error, own, num_steps, verdict",
    [
        (LIMITED + 0.0021, 0.001, 0.05, 500, "yes"),
        (LIMITED + 0.0019, 0.001, 0.05, 500, "unknown"),
        (FREE - 0.0021, 0.001, SETTLED, 500, "no"),
        (FREE - 0.0019, 0.001, SETTLED, 500, "unknown"),
        (-0.002, 0.001, SETTLED + 0.001, 500, "unknown"),
        (-0.002, 0.001, -SETTLED - 0.001, 500, "unknown"),
        (-0.002, 0.001, 0.0, ENOUGH_STEPS - 1, "unknown"),
        (LIMITED + 0.1, 0.001, 0.2, LEAST_STEPS, "yes"),
        (LIMITED + 0.1, 0.001, 0.2, LEAST_STEPS - 1, "unknown"),
        (0.0, math.inf, 0.0, 500, "unknown"),
    ],
)
def test_a_fit_decides(make, gain, error, own, num_steps, verdict):
    fit = replace(make.fit_facts(gain, error, own), num_steps=num_steps)
    assert make.softmax(fit=fit).answer.verdict == verdict


def test_a_fit_is_put_into_words(make):
    sentence = make.softmax(fit=make.fit_facts()).answer.sentence
    assert sentence.replace("\u00a0", " ") == (
        "Yes: a mixture of softmaxes predicts this text better. Fitted to the same hidden states, "
        "4 softmaxes predict held-out text 3.0 ± 0.5 % better than the best head with the bound, "
        "and 4.9 % better than the model's own."
    )
    unsure = make.softmax(fit=make.fit_facts(gain=-0.01)).answer.sentence
    assert "1.0\u00a0±\u00a00.5\u00a0% worse than" in unsure
    assert unsure.endswith("own: `highrank compare` trains both, and tells.")


def test_heads_that_learned_their_sample_by_heart_say_so(make):
    nats = {"softmax_nats": 3.31, "moc_nats": 3.2, "mos_nats": 3.4}
    fit = replace(make.fit_facts(gain=-0.2), nats=3.0, **nats)
    model = make.softmax()
    found = answer_of(model.head, model.text, model.rank, None, fit, source=Source.HUGGING_FACE)
    assert found.headline == "Cannot tell: all fitted heads predict worse than the model's own."
    assert "22.1\u00a0% worse: they" in found.reason and "`highrank finetune`" in found.reason


def test_as_many_numbers_as_tokens_express_everything(make):
    model = make.softmax()
    head = replace(model.head, context_size=999)
    assert answer_of(head, model.text, model.rank, None).verdict is Limited.NO


def test_a_rank_above_the_bound_is_not_trusted(make):
    model, rank = make.softmax(), make.rank_facts([1.0] * 101, bound=100)
    assert "101 of at most 100." in answer_of(model.head, model.text, rank, None).sentence


def test_the_joint_answer_lists_models_by_verdict():
    answers = [
        Answer(verdict=v, headline=f"{v}!", reason="So.")
        for v in (Limited.NO, Limited.UNKNOWN, Limited.NO)
    ]
    assert joint_answer(["a"], answers[:1]) == "no! So."
    assert joint_answer(["a", "b", "c"], answers).endswith(" No for a, c; cannot tell for b.")
