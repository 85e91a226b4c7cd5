"""The pointer beside an adaptive softmax: against a loop over pairs, and forbidden tokens."""

import pytest
import torch
from contract import gradients, with_copies

from highrank.heads import AdaptivePointer

T, B, D, V, E, L, S = 13, 2, 6, 23, 4, 5, 3
COUNTS = [(7 * token) % V for token in range(V)]
FORMS = {
    "one tail": {"frequent": 7},
    "two narrow tails": {"frequent": 5, "cutoffs": (14,), "div_value": 2},
    "no tail": {"frequent": V},
}


@pytest.fixture(params=FORMS)
def head(request, generic):
    options = {"num_states": L, "key_size": S, "token_counts": COUNTS}
    return generic(AdaptivePointer(D, V, E, **FORMS[request.param], **options), scale=0.7)


def window(length=T):
    hidden = torch.randn(length, B, D, dtype=torch.float64)
    return hidden, torch.randint(V, (length, B)), torch.randint(V, (length, B))


def test_log_prob_and_its_gradients_are_those_of_the_definition(head, reference):
    hidden, tokens, _ = window()
    hidden.requires_grad_()
    want = with_copies(head, reference(head, hidden).exp(), hidden, tokens)
    got = head.log_prob(hidden, tokens=tokens, state=head.initial_state(B))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    upstream = torch.randn_like(want)
    both = [gradients((upstream * x).sum(), head, hidden) for x in (got, want)]
    torch.testing.assert_close(*both, rtol=1e-10, atol=1e-10)


def test_a_forbidden_token_can_be_copied_and_otherwise_costs_infinity(head):
    hidden, tokens, target = window()
    tokens[:], target[:] = 3, 3
    with torch.no_grad():
        head.bias[3] = -torch.inf
    want = head.log_prob(hidden, tokens=tokens)[..., 3]
    output, loss = head(hidden, target, "none", tokens=tokens)
    torch.testing.assert_close(output, want, rtol=1e-10, atol=1e-10)
    # Only the first token has nothing to copy.
    assert (output[0] == -torch.inf).all() and output[1:].isfinite().all()
    loss[1:].sum().backward()
    finite = [p.grad.isfinite().all() for p in head.parameters() if p.grad is not None]
    assert all(finite) and head.key.weight.grad.any()


def test_it_starts_as_a_cache_with_the_asked_weight():
    head = AdaptivePointer(200, V, E, frequent=7, key_size=128, pointer_weight=0.25)
    assert torch.equal(head.query.weight, head.key.weight) and not head.gate.weight.any()
    assert head.gate.bias.sigmoid().item() == pytest.approx(0.25)
    assert head.rank_bound is None
    with pytest.raises(ValueError, match="the start weight must be between 0 and 1, got 1.5"):
        AdaptivePointer(D, V, E, pointer_weight=1.5)
