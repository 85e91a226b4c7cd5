"""Models are trained on from the same weights, in the same order; an interruption loses nothing."""

import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")
from highrank.integrations.huggingface.reader import HuggingFaceModel
from highrank.studies.finetune import training
from highrank.studies.finetune.measure import make_task, prepare_folder, run_finetune
from highrank.studies.finetune.settings import Settings
from highrank.studies.finetune.text import read_splits
from highrank.studies.finetune.training import ArmTraining, held_out_nats, is_evaluated
from highrank.studies.finetune.variants import make_variant, step_times
from highrank.training.signals import Stopped

SIZES = {"block_length": 16, "batch_size": 4, "steps": 20, "lr": 1e-2}


def quiet(fraction, text):
    assert 0 <= fraction <= 1 and text


@pytest.fixture(scope="module")
def settings(place):
    return Settings(model=str(place / "base"), text=str(place / "tale.txt"), **SIZES)


@pytest.fixture(scope="module")
def model(settings):
    return HuggingFaceModel(settings.model)


@pytest.fixture(scope="module")
def base(model):
    return model.load().model


@pytest.fixture(scope="module")
def splits(model, place):
    return read_splits(model, place / "tale.txt", quiet)


@pytest.fixture
def start(settings, splits, model, base, tmp_path):
    """A function that begins or resumes the training of a variant; `check` may stop it."""

    def begin(variant, name="x", check=lambda: None, share=None):
        task = make_task(settings, splits, model, check)
        new = make_variant(base, variant, 3, seed=5)
        return ArmTraining(task, new, variant, 5, tmp_path / f"{name}.pt", share)

    return begin


class Interruption:
    """Stops the work when it is called for the n-th time."""

    def __init__(self, n):
        self.n = n

    def __call__(self):
        self.n -= 1
        if self.n == 0:
            raise Stopped(15)


def same(one, other):
    times = {"seconds", "step_seconds"}

    def timeless(arm):
        return [{k: v for k, v in vars(p).items() if k not in times} for p in arm.points]

    assert timeless(one) == timeless(other)


def test_all_variants_start_with_the_same_loss(start):
    losses = []
    for variant in ("softmax", "residual", "identity", "linear"):
        found = start(variant)
        found._evaluate(quiet)
        losses.append(found.points[0].valid_nats)
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-5)


def test_an_interruption_changes_nothing(start):
    whole = start("residual", "whole").run(quiet)
    # In a step, and in the middle of an evaluation.
    for n in (9, 5, 10):
        with pytest.raises(Stopped):
            start("residual", "cut", Interruption(n)).run(quiet)
    resumed = start("residual", "cut")
    assert resumed.step == 16 and len(resumed.points) == 1
    same(resumed.run(quiet), whole)
    assert [point.step for point in whole.points] == [0, 16, 20]
    assert whole.points[-1].valid_nats < whole.points[0].valid_nats
    assert whole.points[0].components.num_collapsed == 2


def test_the_loss_is_the_mean_over_held_out_tokens(start, settings, splits):
    found = start("softmax")
    blocks = found.task.valid
    logits = found.model(blocks.rows, return_logits=True).logits[:, :-1]
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), blocks.rows[:, 1:].flatten())
    nats = held_out_nats(found.model, blocks, settings, lambda: None)
    assert nats == pytest.approx(want.item(), rel=1e-5)


def test_averaged_weights_are_borrowed(start):
    found = start("identity")
    found.run(quiet)
    before = [p.detach().clone() for p in found.model.parameters()]
    with found.averaged():
        inside = [p.detach().clone() for p in found.model.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(before, inside, strict=True))
    for a, b in zip(before, found.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_frozen_weights_stay(start, settings, splits, model, base, tmp_path):
    task = make_task(replace(settings, weights="head"), splits, model, lambda: None)
    new = make_variant(base, "residual", 3, 0)
    arm = ArmTraining(task, new, "residual", 0, tmp_path / "a.pt", None)
    arm.run(quiet)
    for (name, p), q in zip(base.named_parameters(), new.parameters(), strict=False):
        assert torch.equal(p, q), name
    assert any(p.abs().max() > 0 for p in arm.trained)
    # A softmax has nothing to train then: it stays what it was.
    alone = ArmTraining(
        task, make_variant(base, "softmax", 3, 0), "softmax", 0, tmp_path / "b.pt", None
    )
    assert [point.step for point in alone.run(quiet).points] == [0]


def test_a_share_of_the_time_ends_the_training(start, monkeypatch):
    found = start("softmax", share=10.0)
    clock = iter(range(10_000))
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(clock))
    arm = found.run(quiet)
    # An evaluation and each step take one tick; one is kept for the last evaluation.
    assert arm.points[-1].step == 8 and found.seconds == 10


def test_variants_take_turns_when_their_steps_are_timed(start, base):
    seen, task = [], start("softmax").task
    times = step_times(task, base, lambda fraction, text: seen.append(text.split()[-1]))
    assert seen == ["softmax", "residual"] * 3
    assert min(times.values()) > 0


def test_a_loss_that_is_not_finite_ends_with_advice(start):
    found = start("softmax")
    found.model.get_output_embeddings().weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="at step 1: begin anew with a lower --lr than 0.01"):
        found.train_step()


def test_a_finetuning_resumes_and_leaves_models(settings, tmp_path, monkeypatch, base):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = run_finetune(settings, tmp_path, quiet)
    assert [arm.variant for arm in result.arms] == ["softmax", "residual"]
    assert result.equal_tokens.at == 20 * 4 * 16
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "softmax-0")
    assert type(plain) is type(base)
    AutoTokenizer.from_pretrained(tmp_path / "residual-0")
    mixture = AutoModelForCausalLM.from_pretrained(tmp_path / "residual-0")
    assert mixture.get_output_embeddings().head.num_components == 4
    # All is done: nothing is trained again.
    monkeypatch.setattr(ArmTraining, "run", lambda *_: 1 / 0)
    assert run_finetune(settings, tmp_path, quiet).arms == result.arms
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.1}, "must be new or have the same settings, got lr 0.01, not 0.1"),
        ({"block_length": 64}, "block-length must be at most 32 for .*, got 64"),
        ({"block_length": 32, "batch_size": 999}, "must have 999 blocks of 32 tokens at least"),
    ],
)
def test_mistakes_are_found_before_training(change, message, settings, splits, tmp_path):
    prepare_folder(tmp_path, settings, splits)
    with pytest.raises(ValueError, match=message):
        run_finetune(replace(settings, **change), tmp_path, quiet)


def test_a_folder_of_something_else_is_refused(settings, splits, tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be new or a finetuning"):
        prepare_folder(tmp_path, settings, splits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"starts": ()}, "starts must be one or more, each once"),
        ({"starts": ("softmax",)}, "starts must be those of a mixture"),
        ({"block_length": 1}, "block-length must be at least 2, got 1"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(model="m", text="t", **change)


def test_evaluations_become_rarer():
    steps = [step for step in range(1, 1025) if is_evaluated(step)]
    assert steps[:9] == [16, 32, 48, 64, 80, 96, 112, 128, 160]
    assert steps[-5:] == [512, 640, 768, 896, 1024]
