"""The pointer's share of a token's probability, against the sum over what it points at."""

import pytest
import torch

from highrank.heads import Softmax, head_class
from highrank.heads.shares import share_names, shares


@pytest.mark.parametrize("kind", ["mos+pointer", "adaptive-softmax+pointer"])
def test_the_share_of_a_pointer_is_its_part_of_the_sum(kind, generic):
    options = {"embedding_size": 4, "num_states": 6, "key_size": 4}
    options |= {"num_components": 2} if kind == "mos+pointer" else {}
    head = generic(head_class(kind)(5, 9, **options), 0.5)
    hidden, tokens = torch.randn(7, 2, 5).double(), torch.arange(14).reshape(7, 2) % 4
    target = tokens.roll(-1, 0)
    found = shares(head, hidden, target, tokens=tokens)  # (7, 2, 2)
    features = head.features(hidden, tokens=tokens)
    (log_attention, candidate), gate = features.inputs[0], features.gate[..., 0].sigmoid()
    copied = gate * (log_attention.exp() * (candidate == target[..., None])).sum(-1)
    p = head.log_prob(hidden, tokens=tokens).exp().gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(found[..., 1], copied / p)
    torch.testing.assert_close(found.sum(-1), torch.ones(7, 2, dtype=torch.float64))
    assert 0 < found[..., 1].max() < 1 and (found[0, :, 1] == 0).all()
    assert share_names(head) == ("softmax", "pointer") and share_names(Softmax(5, 9)) == ()
