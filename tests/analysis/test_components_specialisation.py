"""Components that say the same tell nothing; components that own a word tell it."""

import math

import numpy as np
import pytest
import torch

from highrank.analysis.components import specialisation
from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.models.awd_lstm import AWDLSTM
from highrank.models.language_model import LanguageModel

WORDS = np.arange(40, dtype=np.uint16) % 8


def model_with(head):
    return LanguageModel(AWDLSTM(8, 4, (6,)), head, tied=False).eval()


def test_components_with_a_word_each_tell_all_about_it():
    head = MixtureOfSoftmaxes(6, 8, 2, 2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.latent.bias.copy_(
            torch.tensor([20.0, -20.0, -20.0, 20.0])
        )  # contexts (1, -1), (-1, 1)
        head.weight[0, 0] = head.weight[1, 1] = 50.0
    assert specialisation(model_with(head), WORDS) == pytest.approx(math.log(2), rel=1e-5)


def test_components_that_say_the_same_tell_nothing():
    head = MixtureOfSoftmaxes(6, 8, 3, 4)
    with torch.no_grad():
        head.latent.weight.copy_(head.latent.weight[:4].repeat(3, 1))
        head.latent.bias.copy_(head.latent.bias[:4].repeat(3))
    assert specialisation(model_with(head), WORDS) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "head", [Softmax(6, 8), MixtureOfSoftmaxes(6, 8, 1, 4), MixtureOfContexts(6, 8, 3, 4)]
)
def test_what_is_no_mixture_of_softmaxes_has_none(head):
    assert specialisation(model_with(head), WORDS) is None


def test_as_many_contexts_are_read_as_asked_for():
    model = model_with(MixtureOfSoftmaxes(6, 8, 3, 4))
    assert specialisation(model, WORDS, 5) == specialisation(model, WORDS[:5])
    assert specialisation(model, WORDS, 5) != specialisation(model, WORDS, 6)
