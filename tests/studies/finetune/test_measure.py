"""Models are trained from the same weights, in the same order; an interruption changes nothing."""

import math
import os
import signal
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer

from highrank.integrations.huggingface import variants
from highrank.integrations.huggingface.reader import HuggingFaceModel
from highrank.integrations.huggingface.variants import is_evaluated, prepare_folder, step_times
from highrank.studies.finetune import measure
from highrank.studies.finetune.measure import run_finetune
from highrank.studies.finetune.settings import Settings
from highrank.studies.finetune.training import FinetuneTraining, held_out_nats
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
    return measure.read_splits(model, place / "tale.txt", quiet)


@pytest.fixture
def start(settings, splits, model, base):
    """A function that makes a training of a variant; `check` may stop it."""

    def begin(variant, check=lambda: None, **changes):
        task = measure.make_task(replace(settings, **changes), splits, model.prefix, check)
        return FinetuneTraining(task, measure.make_variant(base, variant, 3, seed=5), variant, 5)

    return begin


class Killed(BaseException):
    """Nothing is saved after it."""


def killer(n):
    """A function that ends the work when it is called for the n-th time."""
    calls = iter(range(1, n))

    def check():
        if next(calls, None) is None:
            raise Killed

    return check


def timeless(variant):
    points = asdict(variant)["points"]
    return [{name: value for name, value in p.items() if name != "seconds"} for p in points]


def test_all_variants_start_with_the_same_loss(start):
    losses = []
    for variant in ("softmax", "residual", "identity", "linear"):
        found = start(variant)
        found.evaluate()
        losses.append(found.points[0].valid_nats)
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-5)


def test_a_kill_loses_what_followed_the_last_checkpoint_and_changes_nothing(
    start, tmp_path, monkeypatch
):
    # More than an epoch.
    begin = partial(start, "residual", steps=40)
    whole = begin()
    whole.run(tmp_path / "whole.pt", quiet)
    monkeypatch.setattr(variants, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    # In a step, in the middle of an evaluation, and in the second epoch.
    for n, step in ((9, 5), (14, 16), (26, 35)):
        cut = begin(check=killer(n))
        with pytest.raises(Killed):
            cut.run(tmp_path / "cut.pt", quiet)
        assert cut.num_steps == step
    resumed = begin()
    resumed.run(tmp_path / "cut.pt", quiet)
    assert timeless(resumed.result()) == timeless(whole.result())
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))
    assert [point.step for point in whole.points] == [0, 16, 32, 40]
    assert whole.points[-1].valid_nats < whole.points[0].valid_nats
    assert whole.points[0].components.num_collapsed == 2


def test_signals_leave_the_files_of_an_uninterrupted_finetuning(settings, tmp_path):
    whole = run_finetune(settings, tmp_path / "whole", quiet)
    num_calls, num_signals = 0, 0

    def send(fraction, text):
        nonlocal num_calls
        num_calls += 1
        if num_calls % 13 == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    while True:
        try:
            result = run_finetune(settings, tmp_path / "cut", send)
            break
        except Stopped:
            num_signals += 1
    assert num_signals > 2
    for one, other in zip(whole.variants, result.variants, strict=True):
        assert timeless(one) == timeless(other)
    files = {
        folder: sorted(p.relative_to(tmp_path / folder) for p in (tmp_path / folder).rglob("*"))
        for folder in ("whole", "cut")
    }
    assert files["whole"] == files["cut"]
    for path in files["whole"]:
        if path.suffix == ".safetensors":
            one, other = (tmp_path / folder / path for folder in files)
            assert one.read_bytes() == other.read_bytes()


def test_the_loss_is_the_mean_over_held_out_tokens(start):
    found = start("softmax")
    found.model.eval()
    rows = found.task.valid.batch(range(found.task.valid.count)).inputs.T
    logits = found.model.model(rows, return_logits=True).logits[:, :-1]
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert held_out_nats(found.model, found.task) == pytest.approx(want.item(), rel=1e-5)


def test_frozen_weights_stay(start, base, tmp_path):
    found = start("residual", weights="head")
    found.run(tmp_path / "a.pt", quiet)
    for (name, p), q in zip(base.named_parameters(), found.model.parameters(), strict=False):
        assert torch.equal(p, q), name
    assert found.points[-1].valid_nats < found.points[0].valid_nats
    # A softmax has nothing to train then: it stays what it was.
    alone = start("softmax", weights="head")
    alone.run(tmp_path / "b.pt", quiet)
    assert [point.step for point in alone.points] == [0] and alone.result().num_trained == 0


def test_the_budget_ends_the_training(start, monkeypatch, tmp_path):
    found = start("softmax", budget="30s")
    clock = iter(range(10_000))
    monkeypatch.setattr(variants.time, "perf_counter", lambda: next(clock))
    found.run(tmp_path / "x.pt", quiet)
    # An evaluation and each step take one tick; one is kept for the last evaluation.
    assert found.points[-1].step == 8 and found.clock.seconds == 10
    # More time resumes it.
    again = start("softmax", budget="36s")
    again.run(tmp_path / "x.pt", quiet)
    assert [point.step for point in again.points] == [0, 8, 9]


def test_variants_take_turns_when_their_steps_are_timed(start, tmp_path):
    seen, names = [], ("softmax", "residual", "linear")
    times = step_times(names, start, tmp_path, lambda _, text: seen.append(text.split()[-1]), 3)
    assert seen == [*names] * 3 and min(times.values()) > 0


def test_a_loss_that_is_not_finite_ends_with_advice(start):
    found = start("softmax")
    found.model.model.get_output_embeddings().embedding.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match=r"diverged at step 1: .*lower --lr than 0\.01"):
        found.train_step()


def test_a_finished_folder_has_models_and_is_not_trained_again(
    settings, tmp_path, monkeypatch, base
):
    # What a process leaves that was killed while it wrote the settings.
    (tmp_path / ".settings.json.new").write_text("{")
    result = run_finetune(settings, tmp_path, quiet)
    assert [one.variant for one in result.variants] == ["softmax", "residual", "linear"]
    assert result.equal_tokens.at == 20 * 4 * 16
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "softmax-0")
    assert type(plain) is type(base)
    AutoTokenizer.from_pretrained(tmp_path / "residual-0")
    mixture = AutoModelForCausalLM.from_pretrained(tmp_path / "residual-0")
    assert mixture.get_output_embeddings().head.num_components == 4
    # What one leaves that was killed after it wrote a model.
    (tmp_path / "softmax-0-trainer.pt").write_text("x")
    monkeypatch.setattr(FinetuneTraining, "run", lambda *_: 1 / 0)
    assert run_finetune(settings, tmp_path, quiet).variants == result.variants
    names = {"softmax-0", "residual-0", "linear-0", "settings.json", "step_times.json", "lock"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.1}, "must be new or have the same settings, got lr 0.01, not 0.1"),
        ({"block_length": 1}, "block-length must be at least 2, got 1"),
        ({"block_length": 32, "batch_size": 999}, "must have 999 blocks of 32 tokens at least"),
    ],
)
def test_mistakes_are_found_before_training(change, message, settings, splits, tmp_path):
    content = measure.settings_file(settings, splits)
    prepare_folder(tmp_path / "old", content)
    with pytest.raises(ValueError, match=message):
        run_finetune(replace(settings, **change), tmp_path / "old", quiet)
    with pytest.raises(ValueError, match="must be new or a finetuning, got .* with other files"):
        prepare_folder(tmp_path, content)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="must be new or a finetuning, got the file .*file"):
        prepare_folder(tmp_path / "file", content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"weight_decay": -1.0}, "weight-decay must be at least 0, got -1"),
        ({"num_components": 10**5}, "^components must be at most 1,024, got 100000"),
        ({"seeds": 10**5}, "seeds must be at most 1,000, got 100000"),
        ({"steps": 2**63}, "steps must be at most 2,147,483,647, got 9223372036854775808"),
        ({"head_lr": 1e308}, "head-lr must be at most 1e\\+38, got 1e"),
        ({"starts": ("new", "new")}, "starts must be one or more, each once"),
        ({"starts": ("softmax",)}, "starts must be one or more, each once"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(model="m", text="t", **change)


def test_blocks_are_no_longer_than_the_model(settings, model):
    for length, found in ((64, 32), (32, 32), (8, 8)):
        wanted = replace(settings, block_length=length)
        assert measure.with_block_length(wanted, model).block_length == found


@pytest.mark.parametrize(
    ("change", "rate"), [({}, 0.01), ({"head_lr": 1e-5}, 1e-5), ({"lr": 0.1}, 0.1)]
)
def test_added_weights_have_a_higher_rate(change, rate, start):
    found = Settings(model="m", text="t", **change)
    assert found.added_lr(64) == pytest.approx(rate)
    groups = start("residual", lr=1e-3).model.parameter_groups()
    assert sorted({group["lr_scale"] for group in groups}) == pytest.approx([1.0, 40.0])


def test_evaluations_become_rarer():
    steps = [step for step in range(1, 1025) if is_evaluated(step, 16, 4)]
    assert steps[:9] == [16, 32, 48, 64, 80, 96, 112, 128, 160]
    assert steps[-5:] == [512, 640, 768, 896, 1024]
