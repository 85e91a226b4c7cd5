"""Dropout by how often a text is read: none for one pass, more with epochs and with weights."""

import pytest

from highrank.presets.backbones import with_network
from highrank.presets.dropout import OPTIONS, PARTS, dropout_of, weights_of, with_dropout
from highrank.presets.sizing import of_width
from highrank.presets.small import small, small_mos


def width(config):
    return of_width(small(), config)


def test_weights_are_those_of_the_lstm_and_of_the_output_layer():
    config = width(64)
    assert config.model.options["hidden_sizes"] == (64, 48) and config.model.embedding_size == 32
    layers = 4 * 64 * (32 + 64) + 4 * 48 * (64 + 48)
    assert weights_of(config) == layers + 48 * 32 + 2_000 * 32


@pytest.mark.parametrize(
    ("width_of", "num_train", "epochs", "lowest", "highest"),
    [
        # Around what was best of those that were tried: the rule was made to fit these runs.
        (192, 929_589, 2.7, 0.0, 0.05),
        (256, 93_000, 2.7, 0.0, 0.1),
        (128, 93_000, 9, 0.1, 0.2),
        (256, 93_000, 10, 0.1, 0.2),
        (128, 93_000, 34, 0.2, 0.3),
        (256, 93_000, 21, 0.2, 0.3),
    ],
)
def test_it_is_near_what_was_best(width_of, num_train, epochs, lowest, highest):
    found = dropout_of(width(width_of), epochs * num_train, num_train)
    assert lowest <= found <= highest


def test_it_grows_with_epochs_and_weights_up_to_a_half():
    def by(width_of, epochs):
        return dropout_of(width(width_of), epochs * 1e5, 100_000)

    epochs = [by(256, n) for n in (0.1, 1, 10, 100, 1e9)]
    assert epochs == sorted(epochs) and epochs[0] == 0 and epochs[-1] == 0.5
    assert by(64, 20) < by(256, 20) < by(1024, 20)


def test_every_dropout_follows_but_what_the_user_has_chosen():
    found = with_dropout(small(), 2e6, 100_000)
    (p,) = {found.model.options[name] for name, part in PARTS.items() if part == 1}
    assert p > 0.2 and found.head.dropout == p
    assert found.model.options["embedding_dropout"] == pytest.approx(p / 4, abs=1e-3)
    assert with_dropout(small(), 2e6, 100_000, OPTIONS) == small()
    given = with_dropout(small(), 2e6, 100_000, {"model.input-dropout", "head.dropout"})
    assert given.head == small().head and given.model.options["input_dropout"] == 0.2


def test_other_networks_keep_theirs():
    config = with_network(small_mos(), "transformer")
    assert with_dropout(config, 2e6, 100_000) == config
