"""The pointer beside an adaptive softmax: against a loop over pairs, and its limiting cases."""

import pytest
import torch
from torch import nn

from highrank.heads import AdaptivePointer, AdaptiveSoftmax

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


def without_pointer(head):
    """The adaptive softmax alone, with the same parameters."""
    frequent, *cutoffs = (*head.cutoffs, V)[: max(1, len(head.cutoffs))]
    options = {"frequent": frequent, "cutoffs": tuple(cutoffs), "div_value": head.div_value}
    plain = AdaptiveSoftmax(D, V, E, token_counts=COUNTS, **options).double()
    own = head.state_dict()
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    return plain


def definition(head, adaptive, hidden, tokens):
    """(T, B, V): one token and one pair after the other, from log p of the softmaxes."""
    rows = []
    for t in range(len(hidden)):
        streams = []
        for b in range(B):
            pairs, prob = range(max(0, t - L), t), adaptive[t, b].exp()
            if pairs:
                query = head.query(hidden[t, b])
                score = torch.stack([query @ head.key(hidden[i, b]) for i in pairs])
                copied = torch.zeros(V).double()
                for i, weight in zip(pairs, score.softmax(-1), strict=True):
                    copied = copied + weight * nn.functional.one_hot(tokens[i + 1, b], V)
                gate = head.gate(hidden[t, b]).sigmoid()
                prob = (1 - gate) * prob + gate * copied
            streams.append(prob)
        rows.append(torch.stack(streams))
    return torch.stack(rows).log()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients_are_those_of_the_definition(head, reference, reduction):
    hidden, tokens, target = window()
    hidden.requires_grad_()
    past = {"tokens": tokens, "state": head.initial_state(B)}
    log_p = definition(head, reference(head, hidden), hidden, tokens)
    torch.testing.assert_close(head.log_prob(hidden, **past), log_p, rtol=1e-10, atol=1e-10)
    want = -log_p.gather(-1, target[..., None]).squeeze(-1)
    output, loss = head(hidden, target, reduction, **past)
    torch.testing.assert_close(output, -want, rtol=1e-10, atol=1e-10)
    want = want if reduction == "none" else getattr(want, reduction)()
    upstream = torch.linspace(-1, 1, T * B).double().view(T, B) if reduction == "none" else 3.0
    leaves = [hidden, *(p for p in head.parameters() if p.numel())]
    got, wanted = (
        torch.autograd.grad((upstream * x).sum(), leaves, allow_unused=True) for x in (loss, want)
    )
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_with_a_closed_gate_it_is_the_adaptive_softmax(head):
    hidden, tokens, target = window()
    plain = without_pointer(head)
    nn.init.zeros_(head.gate.weight)
    nn.init.constant_(head.gate.bias, -1000.0)
    got, want = head(hidden, target, tokens=tokens), plain(hidden, target)
    torch.testing.assert_close(got.loss, want.loss, rtol=1e-12, atol=1e-12)
    got, want = head.log_prob(hidden, tokens=tokens), plain.log_prob(hidden)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [[1] * 13, [4, 9], [12, 1]], ids=str)
def test_windows_of_any_length_are_one_long_window(head, lengths):
    hidden, tokens, target = window()
    whole = head(hidden, target, tokens=tokens, state=head.initial_state(B)).output
    state, found, start = head.initial_state(B), [], 0
    for length in lengths:
        part = slice(start, start + length)
        past = {"tokens": tokens[part], "state": state}
        found.append(head(hidden[part], target[part], **past).output)
        state, start = head.advance(hidden[part], tokens[part], state), start + length
    torch.testing.assert_close(torch.cat(found), whole, rtol=1e-12, atol=1e-12)


def test_probabilities_sum_to_one_and_ignored_targets_do_not_count(head):
    hidden, tokens, target = window()
    total = head.log_prob(hidden, tokens=tokens).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)
    output = head(hidden, target, tokens=tokens).output
    ignoring = target.clone()
    ignoring[::2] = -100
    found = head(hidden, ignoring, tokens=tokens)
    torch.testing.assert_close(found.loss, -output[1::2].mean())
    assert (found.output[::2] == 0).all()


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


def test_samples_follow_the_probabilities(head):
    hidden, tokens, _ = window(3)
    prob = head.log_prob(hidden, tokens=tokens).exp()[-1, 0]
    drawn = torch.stack([head.sample(hidden, tokens=tokens)[-1, 0] for _ in range(1000)])
    found = drawn.bincount(minlength=V) / 1000
    assert (found - prob).abs().max() < 0.06
    assert torch.equal(head.predict(hidden, tokens=tokens)[-1, 0], prob.argmax())


def test_it_starts_as_a_cache_with_the_asked_weight():
    head = AdaptivePointer(200, V, E, frequent=7, key_size=128, pointer_weight=0.25)
    assert torch.equal(head.query.weight, head.key.weight) and not head.gate.weight.any()
    assert head.gate.bias.sigmoid().item() == pytest.approx(0.25)
    assert head.rank_bound is None
    with pytest.raises(ValueError, match="the start weight must be between 0 and 1, got 1.5"):
        AdaptivePointer(D, V, E, pointer_weight=1.5)
