"""log p of given tokens: that of `log_prob`, and, in blocks, the same bits in any batch."""

import pytest
import torch
from contract import NAMES, B, D, T, V, gradients, log_prob_of, make_head, make_window

STATELESS = [name for name in NAMES if not make_head(name).is_stateful]


@pytest.mark.parametrize("block", [None, 1, 4, 100])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_log_prob_with_its_gradients(name, block):
    head = make_head(name)
    hidden, ids, past = make_window(head)
    ids[1, 1], ids[2, 0] = -100, -1
    if past and block is not None:
        with pytest.raises(ValueError, match="^block must be None for .*, which looks back, got"):
            head.per_token_log_probs(hidden, ids, block, **past)
        return
    got = head.per_token_log_probs(hidden, ids, block, **past)
    want = log_prob_of(head.log_prob(hidden, **past), ids)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    upstream = torch.linspace(-1, 2, T * B).double().view(T, B)
    both = [gradients((upstream * x).sum(), head, hidden) for x in (got, want)]
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", STATELESS)
def test_in_blocks_no_bit_depends_on_the_rest_of_the_batch(name):
    vocab_size = V if "adaptive" in name else 203
    head = make_head(name, vocab_size, dtype=torch.float32).eval()
    hidden, ids = torch.randn(37, D), torch.randint(vocab_size, (37,))

    def scores(tokens, block):
        return head.per_token_log_probs(hidden[tokens], ids[tokens], block)

    alone = scores(torch.arange(37), 1)
    order = torch.randperm(37)
    assert torch.equal(scores(order, 1), alone[order])
    assert torch.equal(scores(torch.tensor([5]), 1), alone[5:6])
    # In the same place of a block it is the same, whatever and how many the others are.
    whole = scores(torch.arange(37), 16)
    assert torch.equal(scores(torch.arange(16, 21), 16), whole[16:21])
    hidden[16:21] = hidden[18].clone()
    assert torch.equal(scores(torch.arange(37), 16)[21:], whole[21:])


def test_wrong_arguments_are_named():
    head = make_head("mos")
    hidden, ids = torch.randn(3, D).double(), torch.tensor([0, V, 1])
    assert head.per_token_log_probs(hidden[:0], ids[:0], block=2).shape == (0,)
    with pytest.raises(ValueError, match="^block must be at least 1, got 0$"):
        head.per_token_log_probs(hidden, ids.clamp(max=2), block=0)
    for block in (None, 2):
        with pytest.raises(ValueError, match=f"^target must be in 0 … {V - 1} .*, got {V}$"):
            head.per_token_log_probs(hidden, ids, block)
