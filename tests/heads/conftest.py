"""Hidden states and targets that fit heads with D = 6 and V = 11."""

import pytest
import torch


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
def hidden():
    return torch.randn(7, 6, dtype=torch.float64)


@pytest.fixture
def target():
    return torch.tensor([3, 0, 10, 3, 5, 9, 1])
