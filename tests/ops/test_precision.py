"""Half precision is summed in float32; what is more precise stays as it is."""

import pytest
import torch

from highrank.ops.precision import at_least_float32, without_autocast


@pytest.mark.parametrize(
    "dtype, want",
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_half_becomes_float32_and_the_rest_stays(dtype, want):
    assert at_least_float32(dtype) == want


def test_autocast_is_off_inside_and_on_again_after():
    one, device = torch.ones(2, 2), torch.device("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(device):
            assert (one @ one).dtype == torch.float32
        assert (one @ one).dtype == torch.bfloat16


def test_a_device_without_autocast_needs_nothing():
    one = torch.ones(2, 2, device="meta")
    with without_autocast(one.device):
        assert (one @ one).dtype == torch.float32
