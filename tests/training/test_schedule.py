"""Where a run stands in its stages: epochs, steps and tokens, when to average, when to stop."""

from dataclasses import replace

import pytest

from highrank.config import StageConfig
from highrank.training.schedule import Schedule


def test_averaging_starts_when_validation_gets_worse(config):
    schedule = Schedule(replace(config, train=StageConfig(switch_after=2, epochs=99)))
    is_averaging = False
    for epoch, loss in enumerate([5.0, 4.0, 3.0, 3.5, 4.5, 3.0], 1):
        must = not is_averaging and schedule.must_average(loss)
        schedule.end_epoch(loss, is_averaging)
        is_averaging = is_averaging or must
        assert is_averaging == (epoch >= 5), epoch
    assert schedule.history == [5.0, 4.0, 3.0, 3.5, 4.5]


def test_averaging_starts_after_an_epoch_that_was_chosen(config):
    schedule = Schedule(replace(config, train=StageConfig(switch_epoch=2, epochs=9)))
    assert not schedule.must_average(3.0)
    schedule.end_epoch(3.0, was_averaging=False)
    assert schedule.must_average(2.0)


@pytest.mark.parametrize("stage", ["train", "finetune"])
def test_a_stage_that_averages_from_the_start_can_stop_by_its_rule(stage, config):
    asgd = StageConfig(optimizer="asgd", stop_after=1, epochs=99)
    schedule = Schedule(replace(config, **{stage: asgd}))
    if stage == "finetune":
        schedule.start_finetuning()
    for loss, is_over in [(3.0, False), (2.9, False), (3.1, True)]:
        assert not schedule.must_average(loss)
        schedule.end_epoch(loss, was_averaging=True)
        assert schedule.is_stage_over == is_over
    assert schedule.is_run_over == schedule.has_stopped_early == (stage == "finetune")


def test_a_stage_that_has_all_its_epochs_or_steps_has_not_stopped_early(config):
    stage = StageConfig(optimizer="adamw", stop_after=1, epochs=2, steps=9)
    schedule = Schedule(replace(config, train=stage, finetune=None))
    for loss in (3.0, 2.9):
        schedule.end_epoch(loss, was_averaging=True)
    assert schedule.is_run_over and not schedule.has_stopped_early
    schedule.start_stage()
    schedule.steps, schedule.is_stage_over = 9, True
    assert schedule.is_run_over and not schedule.has_stopped_early


def test_progress_is_of_epochs_steps_or_tokens_whichever_is_first(config):
    stage = StageConfig(epochs=4, steps=10, tokens=1000)
    schedule = Schedule(replace(config, train=stage))
    assert schedule.progress(0.5) == 0.125
    for _ in range(3):
        schedule.count(50)
    assert schedule.progress(0.5) == 0.3 and not schedule.is_limit_reached
    schedule.count(500)
    assert schedule.progress(0.5) == 0.65
    schedule.count(400)
    assert schedule.progress(0.5) == 1 and schedule.is_limit_reached


def test_a_schedule_comes_back(config):
    schedule = Schedule(config)
    schedule.count(7)
    schedule.end_epoch(3.0, was_averaging=False)
    schedule.start_finetuning()
    schedule.count(5)
    again = Schedule(config)
    again.load_state_dict(schedule.state_dict())
    assert vars(again) == vars(schedule) and again.stage is config.finetune
    with pytest.raises(ValueError, match="a schedule must have"):
        again.load_state_dict({"epoch": 1})
