"""Tokens that were hardly trained, in embeddings that are made so."""

import numpy as np
import pytest
import torch

from highrank.analysis.undertrained import Closeness, undertrained

UNUSED, HARDLY = [1, 2, 3], [4, 5]


def embedding(shared=3.0):
    """Random rows around a shared one; those of tokens that are hardly trained lie together."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(100, 8, generator=random)
    weight[UNUSED + HARDLY] = weight[0] + 0.05 * weight[UNUSED + HARDLY]
    return weight + shared * torch.randn(8, generator=random)


@pytest.mark.parametrize("shared", [0.0, 3.0, 30.0])
def test_tokens_beside_unused_ones_are_found_whatever_all_share(shared):
    found = undertrained(embedding(shared), UNUSED)
    assert found.measure is Closeness.DISTANCE
    near = (found.values <= found.limit).nonzero()[:, 0].tolist()
    assert near == [0, *UNUSED, *HARDLY]


def test_distances_are_those_of_numpy():
    weight = embedding().double().numpy()
    first = np.linalg.svd(weight)[2][0]
    rest = weight - np.outer(weight @ first, first)
    mean = rest[UNUSED].mean(0)
    cosine = rest @ mean / np.linalg.norm(rest, axis=1) / np.linalg.norm(mean)
    found = undertrained(embedding(), UNUSED)
    np.testing.assert_allclose(found.values.numpy(), 1 - cosine, atol=1e-4)


def test_unused_tokens_without_anything_in_common_leave_the_norms():
    weight = embedding()
    weight[9] *= 1e-3
    for unused in ([], [20, 30, 40, 60, 70]):
        found = undertrained(weight, unused)
        assert found.measure is Closeness.NORM
        assert (found.values <= found.limit).nonzero()[:, 0].tolist() == [9]


def test_unused_rows_of_zeros_leave_the_norms():
    weight = embedding()
    weight[UNUSED] = 0.0
    found = undertrained(weight, UNUSED)
    assert found.measure is Closeness.NORM and (found.values[UNUSED] <= found.limit).all()
