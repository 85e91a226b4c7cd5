"""The pointer beside softmaxes: against a loop over all pairs, its memory, its start, its rank."""

import pytest
import torch
from contract import with_copies
from torch import nn

from highrank.heads import AdaptiveSoftmax, Composed, MixtureOfSoftmaxes, Pointer

T, B, D, V, E, L, S = 9, 2, 6, 11, 4, 5, 3
BASES = {
    "K=1": lambda: MixtureOfSoftmaxes(D, V, 1, E),
    "K=3": lambda: MixtureOfSoftmaxes(D, V, 3, E),
    "two narrow tails": lambda: AdaptiveSoftmax(
        D, V, E, frequent=4, cutoffs=(7,), div_value=2, token_counts=[7 * t % V for t in range(V)]
    ),
}


@pytest.fixture(params=BASES)
def head(request, generic):
    pointer = Pointer(D, V, num_states=L, key_size=S)
    return generic(Composed(BASES[request.param](), [pointer]), scale=0.7)


def large():
    pointer = Pointer(16, 60, num_states=30, key_size=8)
    return Composed(MixtureOfSoftmaxes(16, 60, 1, 4), [pointer])


def window(length=T):
    hidden = torch.randn(length, B, D, dtype=torch.float64)
    return hidden, torch.randint(V, (length, B)), torch.randint(V, (length, B))


def test_values_and_gradients_are_those_of_the_definition(head):
    hidden, tokens, target = window(13)
    hidden.requires_grad_()
    past = {"tokens": tokens, "state": head.initial_state(B)}
    want = with_copies(head, head.base.log_prob(hidden).exp(), hidden, tokens)
    torch.testing.assert_close(head.log_prob(hidden, **past), want, rtol=1e-10, atol=1e-10)
    want = -want.gather(-1, target[..., None]).mean()
    loss = head(hidden, target, **past).loss
    torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
    leaves = [hidden, *head.parameters()]
    got, wanted = (torch.autograd.grad(x, leaves, allow_unused=True) for x in (loss, want))
    # The prior of one component has no influence.
    is_one = head.num_components == 1 and hasattr(head.base, "prior")
    assert [g is None for g in wanted].count(True) == 0 or is_one
    for one, other in zip(got, wanted, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_equal_scores_count_the_remembered_tokens(head):
    hidden, tokens, _ = window()
    nn.init.zeros_(head.components[0].query.weight)
    nn.init.zeros_(head.gate.weight)
    nn.init.constant_(head.gate.bias, 1000.0)
    prob = head.log_prob(hidden, tokens=tokens).exp()
    for t in range(1, T):
        seen = tokens[max(1, t - L + 1) : t + 1]
        count = torch.stack([column.bincount(minlength=V) for column in seen.T]).double()
        torch.testing.assert_close(prob[t], count / len(seen), rtol=1e-12, atol=1e-12)
    # The first token has no pair before it.
    torch.testing.assert_close(prob[0].log(), head.base.log_prob(hidden[0]))


def test_a_sharp_attention_copies_what_followed_the_same_state(head):
    """As an induction: after a state that was there before, the token that followed it."""
    hidden, tokens, _ = window()
    hidden[6] = hidden[2]
    (pointer,) = head.components
    nn.init.eye_(pointer.key.weight)
    with torch.no_grad():
        pointer.query.weight.copy_(1e4 * pointer.key.weight)
        hidden.copy_(nn.functional.normalize(hidden[..., :S], dim=-1).repeat(1, 1, 2))
    nn.init.zeros_(head.gate.weight)
    nn.init.constant_(head.gate.bias, 1000.0)
    assert torch.equal(head.predict(hidden, tokens=tokens)[6], tokens[3])


def test_the_keys_of_a_window_get_gradients_and_those_before_it_do_not(head):
    hidden, tokens, target = window()
    hidden.requires_grad_()
    state, (pointer,) = head.advance(hidden, tokens, head.initial_state(B)), head.components
    assert not state[1].key.requires_grad and state[1].key.shape == (L, B, S)
    assert torch.equal(state[1].token, tokens[-L:])
    copied = tokens[-2:-1]
    head(hidden[:1], copied, tokens=tokens[:1], state=state).loss.backward()
    assert (pointer.key.weight.grad == 0).all() and pointer.query.weight.grad.any()
    head(hidden, target, tokens=tokens, state=state).loss.backward()
    assert pointer.key.weight.grad.any()


def test_it_starts_as_a_cache_of_similar_states():
    pointer = Pointer(200, V, key_size=128, pointer_weight=0.3)
    head = Composed(MixtureOfSoftmaxes(200, V, 1, E), [pointer])
    assert torch.equal(pointer.query.weight, pointer.key.weight) and not head.gate.weight.any()
    assert head.gate.bias.sigmoid().item() == pytest.approx(0.3)
    one, other = torch.randn(2, 200)
    similarity = pointer.query(one) @ pointer.key(one) / (one @ one)
    assert 0.6 < similarity < 1.4
    assert abs(pointer.query(one) @ pointer.key(other)) < 0.5 * (one @ one)


def test_the_rank_of_log_prob_exceeds_the_bound_of_one_softmax(generic):
    head = generic(large())
    hidden, tokens = torch.randn(90, 1, 16).double(), torch.randint(60, (90, 1))
    log_prob = head.log_prob(hidden, tokens=tokens)[:, 0]
    assert head.rank_bound is None
    assert torch.linalg.matrix_rank(log_prob) > 4 * (4 + 2)


def test_only_tokens_that_were_in_memory_raise_the_rank_of_one_softmax(generic):
    head = generic(large())
    hidden, tokens = torch.randn(90, 1, 16).double(), torch.randint(10, (90, 1))
    log_prob = head.log_prob(hidden, tokens=tokens)[:, 0]
    assert torch.linalg.matrix_rank(log_prob) == (4 + 2) + 10


def test_training_makes_no_table_of_the_vocabulary_for_the_pointer(watch):
    head = Composed(MixtureOfSoftmaxes(D, 5000, 1, E), [Pointer(D, 5000, num_states=L, key_size=S)])
    tokens = torch.randint(5000, (30, 1))
    with watch() as plain:
        head.base(torch.randn(30, 1, D), tokens).loss.backward()
    with watch() as pointing:
        head(torch.randn(30, 1, D), tokens, tokens=tokens).loss.backward()
    tables = [sum(size >= 5000 for size in seen.sizes) for seen in (plain, pointing)]
    assert tables[0] == tables[1]


def test_hidden_states_without_their_tokens_are_refused(head):
    with pytest.raises(ValueError, match="^tokens must be given to Composed, got None$"):
        head(torch.randn(T, B, D).double())
    with pytest.raises(ValueError, match="num_states must be at least 1, got 0"):
        Pointer(D, V, num_states=0)


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
    assert all(finite) and head.components[0].key.weight.grad.any()


def test_beside_an_adaptive_softmax_the_rank_is_its_bound_and_the_tokens_in_memory(generic):
    base = AdaptiveSoftmax(16, 60, 4, frequent=20, cutoffs=(40,))
    head = generic(Composed(base, [Pointer(16, 60, num_states=30, key_size=8)]))
    hidden, tokens = torch.randn(90, 1, 16).double(), torch.randint(10, (90, 1))
    # (m + 1) E + m + 2, m = 2 tails.
    assert base.rank_bound == 16
    assert torch.linalg.matrix_rank(head.log_prob(hidden, tokens=tokens)[:, 0]) == 16 + 10
