"""Half precision is summed in float32; what is more precise stays as it is."""

import pytest
import torch

from highrank.ops.precision import at_least_float32


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
