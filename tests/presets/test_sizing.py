"""Sizes by budget: wider with more time, within what the text can teach, unless the user says."""

import pytest

from highrank.presets.dropout import weights_of
from highrank.presets.sizing import (
    TIMED_WIDTHS,
    WEIGHTS_PER_TOKEN,
    WIDTHS,
    Speed,
    sized,
    timed,
)
from highrank.presets.small import fitted, small

SPEED = Speed(4e-5, 1e-10)
MINUTE = 60.0


def choose(seconds, num_train=1_000_000, given=(), speed=SPEED):
    config = fitted(small(), num_train, given, has_budget=True)
    return sized(config, seconds, speed, num_train, given)


def sizes(found):
    return found.config.model.options["hidden_sizes"]


def test_more_time_never_makes_a_narrower_network_and_speed_is_time():
    found = [choose(seconds) for seconds in (1, 10, 60, 300, 3600, 36_000)]
    widths = [sizes(one)[0] for one in found]
    assert widths == sorted(widths) and len(set(widths)) >= 4
    twice = Speed(SPEED.overhead / 2, SPEED.per_weight / 2)
    assert sizes(choose(300, speed=twice)) == sizes(choose(600))
    rates = [one.config.train.lr for one in found]
    assert rates == sorted(rates, reverse=True) and rates[0] == small().train.lr


def test_a_short_text_gets_a_small_network_and_much_dropout():
    long, short = choose(3600, 10_000_000), choose(3600, 60_000)
    assert weights_of(short.config) <= WEIGHTS_PER_TOKEN * 60_000
    assert sizes(short)[0] < sizes(long)[0]
    options = [one.config.model.options["output_dropout"] for one in (long, short)]
    assert options[0] < 0.1 and options[1] > 0.4


def test_without_time_it_is_the_narrowest():
    assert sizes(choose(0.001))[0] == WIDTHS[0]


def test_tokens_are_those_that_the_speed_allows():
    found = choose(5 * MINUTE)
    seconds = 4e-5 + 1e-10 * weights_of(found.config)
    assert found.num_tokens == pytest.approx(300 / seconds)
    assert "5 min" in found.reason and f"about {found.num_tokens / 1e6:.3g} M," in found.reason
    assert f"{1 / seconds:,.0f} tokens a second" in found.reason


def test_a_speed_is_the_line_through_two_measured_networks():
    speed = Speed.through({300: 5.0, 100: 3.0})
    assert speed == pytest.approx((2.0, 0.01)) and speed.num_tokens(300, 10) == pytest.approx(2)
    assert Speed.through({100: 3.0}) == (3.0, 0.0)
    # A clock of a busy machine: no overhead below 0, and more weights take no less time.
    assert Speed.through({100: 1.0, 300: 6.0}) == pytest.approx((0.0, 0.02))
    assert Speed.through({100: 3.0, 300: 3.0}) == pytest.approx((0.0, 0.01))


def test_two_widths_are_measured_or_the_one_that_the_user_has_chosen():
    widths = [one.model.options["hidden_sizes"][0] for one in timed(small())]
    assert widths == list(TIMED_WIDTHS)
    assert timed(small(), {"model.hidden-sizes"}) == [small()]


def test_what_the_user_has_chosen_stays():
    given = ("model.hidden-sizes", "train.lr", "model.input-dropout", "train.epochs")
    found = choose(3600, given=given).config
    assert found.model.options["hidden_sizes"] == small().model.options["hidden_sizes"]
    assert found.model.embedding_size == small().model.embedding_size
    assert found.train == small().train
    dropouts = [found.model.options[f"{name}_dropout"] for name in ("input", "hidden")]
    assert dropouts[0] == small().model.options["input_dropout"] != dropouts[1]
