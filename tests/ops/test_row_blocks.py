"""Rows in another order: indexing and splitting, in values and first and second derivatives."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from highrank.ops.row_blocks import inverse_permutation, row_blocks

ORDERS = pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]], ids=str)


@ORDERS
@pytest.mark.parametrize("shape", [(5,), (5, 3)], ids=str)
def test_blocks_are_those_of_indexing(order, shape):
    order = torch.tensor(order)
    x = torch.randn(shape).double().requires_grad_()
    got = row_blocks(x, order, (2, 0, 3))
    torch.testing.assert_close(got, x[order].split([2, 0, 3]))
    assert gradcheck(lambda x: row_blocks(x, order, (2, 0, 3)), x)
    assert gradgradcheck(lambda x: row_blocks(x.sin(), order, (2, 0, 3)), x)


@ORDERS
def test_torch_func_sees_through_them(order):
    order, x = torch.tensor(order), torch.randn(4, 5, 3).double()

    def bent(x):
        first, second = row_blocks(x, order, (2, 3))
        return first.sin().sum() + second.cos().sum()

    got = torch.vmap(torch.func.grad(bent))(x)
    want = torch.stack([torch.func.grad(bent)(each) for each in x])
    torch.testing.assert_close(got, want)


def test_rows_in_order_are_not_copied_and_a_permutation_has_an_inverse():
    x, order = torch.randn(5, 3), torch.tensor([3, 0, 4, 1, 2])
    first, second = row_blocks(x, torch.arange(5), (2, 3))
    assert first.data_ptr() == x.data_ptr() and second.data_ptr() == x[2:].data_ptr()
    assert torch.equal(inverse_permutation(order)[order], torch.arange(5))
