"""The heads that every test of the base runs on: D = 6, V = 11, K = 3, E = 4."""

import pytest
import torch

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax

HEADS = {
    "softmax": lambda **options: Softmax(6, 11, **options),
    "softmax over a context": lambda **options: Softmax(6, 11, 4, **options),
    "moc": lambda **options: MixtureOfContexts(6, 11, 3, 4, **options),
    "mos": lambda **options: MixtureOfSoftmaxes(6, 11, 3, 4, **options),
}


@pytest.fixture(params=HEADS)
def build(request):
    """A head as its constructor leaves it, with zeros for a bias."""
    return HEADS[request.param]


@pytest.fixture
def generic():
    """Give a head parameters in no special position, in float64."""

    def randomise(head, scale=1.0):
        head.double()
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, std=scale)
        return head

    return randomise


@pytest.fixture
def head(build, generic):
    return generic(build())


@pytest.fixture
def hidden():
    return torch.randn(7, 6, dtype=torch.float64)


@pytest.fixture
def target():
    return torch.tensor([3, 0, 10, 3, 5, 9, 1])
