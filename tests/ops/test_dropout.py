"""Locked dropout: where the mask is shared, how it is scaled, what it is on average."""

import pytest
import torch

from highrank.ops.dropout import dropout_mask, locked_dropout


@pytest.mark.parametrize("shared_dim", [0, 1, 2, -1, None])
def test_the_mask_is_the_same_along_the_shared_dimension_and_nowhere_else(shared_dim):
    masked = locked_dropout(torch.ones(20, 21, 22), 0.5, shared_dim)
    for dim in range(3):
        is_constant = (masked == masked.narrow(dim, 0, 1)).all()
        assert is_constant == (shared_dim is not None and dim == shared_dim % 3)


def test_values_and_gradients_are_kept_scaled_by_the_inverse_of_their_probability():
    x = torch.randn(50, 50, requires_grad=True)
    masked = locked_dropout(x, 0.2, 0)
    torch.testing.assert_close(masked, torch.where(masked == 0, 0.0, x / 0.8))
    (gradient,) = torch.autograd.grad(masked.sum(), x)
    torch.testing.assert_close(gradient * x.detach(), masked.detach())


@pytest.mark.parametrize("p", [0.1, 0.7])
def test_the_expectation_is_the_input(p):
    masked = locked_dropout(torch.ones(2, 100_000), p, 0)
    # Five standard errors of the mean of 100,000 masks.
    assert abs(masked.mean() - 1) < 5 * (p / (1 - p) / 100_000) ** 0.5


def test_no_dropout_is_the_tensor_itself_and_the_dtype_stays():
    x = torch.ones(4, 4, dtype=torch.bfloat16)
    assert locked_dropout(x, 0.0, 0) is x
    assert locked_dropout(x, 0.5, 0).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mask_has_two_values_as_that_of_torch(dtype):
    like = torch.ones(2, dtype=dtype)
    mask = dropout_mask((300, 40), 0.3, like)
    want = torch.nn.functional.dropout(torch.ones(300, 40, dtype=dtype), 0.3)
    assert mask.dtype == dtype and mask.unique().tolist() == want.unique().tolist()
    # Five standard errors of the fraction that is left out.
    assert abs((mask == 0).float().mean() - 0.3) < 5 * (0.3 * 0.7 / 12_000) ** 0.5
