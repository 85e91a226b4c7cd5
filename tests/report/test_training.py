"""The summary of a run, and its learning curve."""

import math

import pytest

from highrank.analysis.components import ComponentReport, mixture_state
from highrank.config import HeadConfig, RunConfig
from highrank.evaluation.static import Evaluation
from highrank.report.training import learning_chart, learning_curve, training_summary
from highrank.training.outcome import Outcome
from highrank.training.result import TrainingResult


def epoch(tokens, train, valid):
    losses = {"train_loss": math.log(train), "valid_loss": math.log(valid)}
    return {"event": "epoch", "tokens": tokens, **losses}


def step(tokens, train):
    return {"event": "step", "tokens": tokens, "train_loss": math.log(train)}


METRICS = [
    step(1_000_000, 323.0),
    epoch(1_000_000, 323.0, 196.0),
    step(2_000_000, 110.0),
    epoch(2_000_000, 110.0, 117.0),
    {"event": "end", "valid_loss": 4.0, "test_loss": 4.0},
]


def test_perplexities_are_drawn_against_millions_of_tokens():
    train, valid = learning_chart(METRICS).series
    assert train.x == valid.x == [1.0, 2.0]
    assert train.y == pytest.approx([323.0, 110.0]) and valid.y == pytest.approx([196.0, 117.0])


def test_the_picture_is_a_png_and_needs_a_validation(tmp_path):
    learning_curve(METRICS, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one validation, got none"):
        learning_curve(METRICS[-1:], tmp_path / "curve.png")


def mixture(specialisation, gate=0.5):
    state, reason = mixture_state(specialisation, gate)
    return ComponentReport(
        num_contexts=500,
        weight_entropy=0.5,
        use_entropy=0.5 + gate,
        specialisation=specialisation,
        gate_information=gate,
        state=state,
        state_reason=reason,
        pair_divergence=(),
        num_pair_contexts=1,
        num_dead=0,
        components=(),
    )


def summary(mixture, **head):
    outcome = Outcome(reason="finished", best_valid_loss=5.0, num_tokens=12_345, seconds=61.2)
    result = TrainingResult(
        run="runs/my run",
        outcome=outcome,
        num_parameters=10,
        mixture=mixture,
        use=None,
        valid=Evaluation(5.0, 3730),
        test=Evaluation(4.0, 4021),
    )
    return training_summary(result, RunConfig(corpus="tale", head=HeadConfig(**head)))


def test_the_summary_has_perplexities_with_their_batch_size_and_the_files():
    text = summary(None, kind="softmax", num_components=1)
    assert "valid perplexity 148.41 (static, batch size 10, 3,730 tokens predicted, 5.0000" in text
    assert "test  perplexity 54.60 (static, batch size 1, 4,021 tokens" in text
    assert "The run is finished: 12,345 tokens in 61 s." in text
    assert "runs/my run/model.safetensors" in text and text.endswith("a picture of them")


@pytest.mark.parametrize(
    ("nats", "gate", "state"),
    [
        (0.1, 0.01, "specialised"),
        (0.099, 0.01, "hardly specialised"),
        (0.0099, 0.5, "collapsed"),
        (0.5, 0.0099, "collapsed"),
    ],
)
def test_the_summary_tells_whether_components_have_specialised(nats, gate, state):
    found = mixture(nats, gate)
    text = summary(found)
    assert f"the components have {state}: {found.state_reason} (I(component; token) = " in text
    is_specialised = state == "specialised"
    assert ("highrank audit 'runs/my run'" in text) == is_specialised
    assert ("--model.embedding-size" in text) != is_specialised
