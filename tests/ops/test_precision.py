"""Half precision is summed in float32; what is more precise stays as it is."""

import torch

from highrank.ops.precision import at_least_float32, without_autocast


def test_half_becomes_float32_and_the_rest_stays():
    given = torch.float16, torch.bfloat16, torch.float32, torch.float64
    want = [*[torch.float32] * 3, torch.float64]
    assert [at_least_float32(dtype) for dtype in given] == want


def test_autocast_is_off_inside_and_on_again_after():
    one, device = torch.ones(2, 2), torch.device("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(device):
            assert (one @ one).dtype == torch.float32
        assert (one @ one).dtype == torch.bfloat16
    # A device without autocast needs nothing.
    one = torch.ones(2, 2, device="meta")
    with without_autocast(one.device):
        assert (one @ one).dtype == torch.float32
