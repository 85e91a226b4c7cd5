"""A race on a made-up text: small, but from reading the text to the times of a step."""

import random

import pytest
import torch

from highrank.experiments.cheaper_backward import EXACT, contestants, run
from highrank.experiments.cheaper_backward_learner import LanguageModel, Learner, read_text
from highrank.experiments.cheaper_backward_result import Sizes

TINY = Sizes(
    hidden_size=8,
    embedding_size=6,
    num_components=4,
    lr=0.02,
    batch_size=4,
    window=5,
    num_valid_tokens=100,
    tokens_per_mark=400,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Sentences "a noun does it", in which the noun decides the verb."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    for part, num_lines in (("train", 400), ("valid", 60)):
        picks = [draw.randrange(8) for _ in range(num_lines)]
        lines = "".join(f" the noun{i} verb{i % 4} it \n" for i in picks)
        (folder / f"ptb.{part}.txt").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def result(text):
    return run(text, seed=1, minutes=0.006, sizes=TINY)


def learner_of(text, name):
    train, valid, vocab_size = read_text(text, None)
    torch.manual_seed(0)
    model = LanguageModel(vocab_size, TINY)
    return Learner(model, contestants(0)[name], train, valid, TINY)


def test_every_contestant_learns(result):
    for contestant in result.contestants:
        assert contestant.by_time[-1].perplexity < 0.8 * result.vocab_size


def test_points_lie_at_equal_times_and_at_equal_tokens(result):
    times = [0.36 * (i + 1) / 8 for i in range(8)]
    for contestant in result.contestants:
        assert all(p.elapsed >= t for p, t in zip(contestant.by_time, times, strict=True))
    of_all = zip(*(contestant.by_tokens for contestant in result.contestants), strict=False)
    num_tokens = [{p.num_tokens for p in points} for points in of_all]
    assert num_tokens and all(len(equal) == 1 for equal in num_tokens)


def test_the_exact_contestant_is_its_own_measure(result):
    exact = result.contestants[0]
    assert exact.name == EXACT
    assert exact.selection.kept_share == 1
    assert exact.selection.weight == exact.selection.context == 0
    assert exact.head_ratio.median == exact.step_ratio.median == 1


def test_sampling_three_of_four_keeps_three_quarters_of_the_rows(result):
    sampled = result.contestants[-1]
    assert sampled.selection.kept_share == pytest.approx(0.75, abs=0.01)
    assert sampled.selection.weight > 0


def test_a_share_of_the_work_is_reported_after_each_turn(text):
    shares = []
    run(text, minutes=0.0005, sizes=TINY, on_progress=lambda share, name: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1
    assert len(shares) == 8 * len(contestants(0))


@pytest.mark.parametrize("name", contestants(0))
def test_turns_do_not_change_what_is_learned(text, name):
    perplexities = []
    for turn in (0.05, 1e-9):
        learner = learner_of(text, name)
        while len(learner.by_tokens) < 2:
            learner.learn_until(learner.elapsed + turn)
            torch.rand(1)
        perplexities.append([p.perplexity for p in learner.by_tokens[:2]])
    assert perplexities[0] == perplexities[1]


def test_rare_words_become_unknown(text):
    train, valid, vocab_size = read_text(text, vocab_size=4)
    assert vocab_size == 4
    # <unk> stands for nouns and verbs; the, it and <eos> are left.
    assert train.bincount().tolist() == [800, 400, 400, 400]
    assert valid.max() < 4


def test_a_folder_without_the_text_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"ptb.train.txt and ptb.valid.txt, got {tmp_path}"):
        run(tmp_path)


def test_arguments_out_of_range_are_named(text):
    with pytest.raises(ValueError, match="minutes must be above 0, got 0"):
        run(text, minutes=0)
    with pytest.raises(ValueError, match="vocab_size must be at least 2, got 1"):
        run(text, vocab_size=1)
