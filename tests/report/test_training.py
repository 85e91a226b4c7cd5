"""The summary of a run, and its learning curve."""

import math

import pytest

from highrank.analysis.components import ComponentReport, mixture_state
from highrank.config import HeadConfig, RunConfig
from highrank.evaluation.static import Evaluation
from highrank.report.training import learning_chart, learning_curve, training_summary
from highrank.training.outcome import Outcome
from highrank.training.result import TrainingResult


def line(event, tokens, **losses):
    return {"event": event, "tokens": tokens, **{k: math.log(v) for k, v in losses.items()}}


METRICS = [
    line("step", 1_000_000, train_loss=323.0),
    line("epoch", 1_000_000, train_loss=323.0, valid_loss=196.0),
    line("step", 2_000_000, train_loss=110.0),
    line("epoch", 2_000_000, train_loss=110.0, valid_loss=117.0),
    {"event": "end", "valid_loss": 4.0, "test_loss": 4.0},
]


def test_perplexities_are_drawn_against_millions_of_tokens_and_need_a_validation(tmp_path):
    train, valid = learning_chart(METRICS).series
    assert train.x == valid.x == [1.0, 2.0]
    assert train.y == pytest.approx([323.0, 110.0]) and valid.y == pytest.approx([196.0, 117.0])
    learning_curve(METRICS, tmp_path / "curve.png", "a curve")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one validation, got none"):
        learning_curve(METRICS[-1:], tmp_path / "curve.png", "none")


def test_single_windows_are_drawn_as_means_of_equal_parts():
    steps = [line("step", tokens, train_loss=100.0) for tokens in range(10, 10_010, 10)]
    train, _ = learning_chart([*steps, line("epoch", 10_000, valid_loss=90.0)]).series
    assert len(train.x) == 40 and train.x[-1] == 10
    assert train.y == pytest.approx([100.0] * 40)


def summary(mixture, **more):
    outcome = Outcome(reason="finished", best_valid_loss=5.0, num_tokens=12_345, seconds=61.2)
    result = TrainingResult(
        run="runs/my run",
        outcome=outcome,
        num_parameters=10,
        mixture=mixture,
        use=None,
        valid=Evaluation(5.0, 3730),
        test=Evaluation(4.0, 4021),
        **more,
    )
    return training_summary(result, RunConfig(corpus="tale", head=HeadConfig()))


@pytest.mark.parametrize(("fraction", "is_said"), [(None, 0), (0.0, 0), (0.2, 0), (0.38, 1)])
def test_a_busy_machine_is_said_in_one_sentence(fraction, is_said):
    text = summary(None, waiting_fraction=fraction)
    assert text.count("The machine was busy: for 38% of its time") == is_said
    assert len(text.splitlines()) == len(summary(None).splitlines()) + is_said


def test_the_summary_reads_as_approved_whether_components_have_specialised_or_not(approve):
    texts = [summary(None)]
    for specialisation, gate in ((0.1, 0.01), (0.099, 0.01), (0.0099, 0.5), (0.5, 0.0099)):
        state, reason = mixture_state(specialisation, gate)
        known = {"specialisation": specialisation, "gate_information": gate}
        others = dict.fromkeys(ComponentReport.__dataclass_fields__, 0)
        found = ComponentReport(**others | known | {"state": state, "state_reason": reason})
        texts.append(summary(found).splitlines()[-1])
    approve("summary.txt", "\n".join(texts))
