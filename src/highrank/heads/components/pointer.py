"""A trained pointer: it copies tokens of the recent past.

Merity, Xiong, Bradbury and Socher (2017), arXiv 1609.07843, with the pairs of the neural cache of
Grave, Joulin and Usunier (2017), arXiv 1612.04426: what followed a state like the present one. The
gate is a linear layer, not a sentinel in the attention.

    q(token) = Σ_{i: x_{i+1} = token} a_ti,   a_t = softmax_i(query(s_t) · key(s_i))

s_t is the hidden state after token x_t, and i = t - L … t - 1. Keys of earlier windows are
remembered, without gradient. Before the first pair of a stream there is nothing to point at, and
its gate is closed. Beside a base whose log p has at most rank r, the rank is at most r plus the
number of different tokens ever in memory. T time, B streams, D hidden size, L pairs that are
remembered, S size of a key.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from highrank.heads.bases.component import Component
from highrank.heads.bases.token_rows import check_sizes
from highrank.ops.precision import at_least_float32
from highrank.ops.tracing import is_traced


class Memory(NamedTuple):
    """The last L states of each stream, the newest last."""

    key: Tensor  # (L, B, S)
    token: Tensor  # (L, B), the token that led to the state; -1 before the first one


class Pointed(NamedTuple):
    log_attention: Tensor  # (..., L), normalised over the pairs that exist
    candidate: Tensor  # (..., L), the token of each pair; -1 where there is none


class Pointer(Component):
    """A pointer to the tokens that followed the last L states.

    Args:
        hidden_size, vocab_size: D and V.
        num_states: L, how many states the pointer remembers.
        key_size: S, the size of its keys and queries.
        pointer_weight: g, the pointer's weight at the start.
        hidden_norm: 2-norm of a fresh network's hidden states; those below 1 count as 1.
    """

    name = "pointer"
    is_stateful = True

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        num_states: int = 400,
        key_size: int = 64,
        pointer_weight: float = 0.1,
        hidden_norm: float = 1.0,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        check_sizes(num_states=num_states, key_size=key_size)
        self.num_states, self.key_size, self.start_weight = num_states, key_size, pointer_weight
        self.hidden_norm = hidden_norm
        self.query = nn.Linear(hidden_size, key_size, bias=False)
        self.key = nn.Linear(hidden_size, key_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Queries and keys start equal: attention is on what followed similar states, as a cache.

        A random projection leaves products of states as they are, on average, over the square of
        `hidden_norm`. So scores are at most about 1, and attention is nearly uniform: where the
        states of a fresh network are large, it would be on a single one, and hardly learn.
        """
        std = self.key_size**-0.5 / max(1.0, self.hidden_norm)
        nn.init.normal_(self.key.weight, std=std)
        with torch.no_grad():
            self.query.weight.copy_(self.key.weight)

    def initial_state(self, batch_size: int) -> Memory:
        weight = self.key.weight
        size = self.num_states, batch_size, self.key_size
        key = torch.zeros(size, device=weight.device, dtype=weight.dtype)
        empty = torch.full((self.num_states, batch_size), -1, device=weight.device)
        return Memory(key, empty)

    def context_length(self, hidden: int) -> int:
        return hidden + self.num_states

    @torch.no_grad()
    def advance(self, hidden: Tensor, tokens: Tensor, state: Memory) -> Memory:
        key, token = self._joined(self.key(hidden), tokens, state)
        return Memory(key[-self.num_states :], token[-self.num_states :])

    def inputs(
        self, hidden: Tensor, tokens: Tensor | None, state: Any, position: Tensor | None = None
    ) -> Pointed:
        assert tokens is not None
        state = self.initial_state(hidden.shape[1]) if state is None else state
        key, token = self._joined(self.key(hidden), tokens, state)  # (L + T, B, S), (L + T, B)
        # Pair i is state i and the token after it. Token t sees the pairs t … t + L - 1.
        token = token.T.contiguous()  # (B, L + T)
        seen = self._seen(hidden.shape[0], token.device)  # (T, L)
        is_empty = token[:, seen] < 0  # (B, T, L)
        candidate = token[:, seen + 1].masked_fill(is_empty, -1)
        score = self._scores(self.query(hidden), key)  # (B, T, L)
        score = score.masked_fill(is_empty, torch.finfo(score.dtype).min)
        return Pointed(score.log_softmax(-1).transpose(0, 1), candidate.transpose(0, 1))

    def is_possible(self, inputs: Pointed) -> Tensor:
        return (inputs.candidate >= 0).any(-1, keepdim=True)  # (..., 1)

    def log_prob_of(self, inputs: Pointed, target: Tensor) -> Tensor:
        # As logsumexp over the pairs with this token, which takes three times as long.
        missed = inputs.candidate != target[..., None]  # (..., L)
        log_part = inputs.log_attention.masked_fill(missed, -torch.inf)
        top = log_part.detach().amax(-1, keepdim=True)  # (..., 1)
        nowhere = top == -torch.inf
        top = top.masked_fill(nowhere, 0.0)
        total = (log_part - top).exp().sum(-1, keepdim=True).masked_fill(nowhere, 1.0)
        return (total.log() + top).masked_fill(nowhere, -torch.inf)

    def log_prob(self, inputs: Pointed, log_gate: Tensor) -> Tensor:
        log_attention, candidate = inputs
        attention = log_attention.exp().masked_fill(candidate < 0, 0.0)  # (..., L)
        prob = attention.new_zeros(*attention.shape[:-1], self.vocab_size)
        prob = prob.scatter_add(-1, candidate.clamp(min=0), attention)  # (..., V)
        missed = prob == 0
        return (prob.masked_fill(missed, 1.0).log() + log_gate).masked_fill(missed, -torch.inf)

    def _joined(self, key: Tensor, token: Tensor, state: Memory) -> Memory:
        return Memory(torch.cat((state.key, key)), torch.cat((state.token, token)))

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """query_t · key_i for i = t … t + L - 1: (B, T, L) from (T, B, S) and (L + T, B, S)."""
        L = self.num_states
        query, key = query.transpose(0, 1), key.transpose(0, 1)  # (B, T, S), (B, L + T, S)
        found = []
        # Blocks of L tokens: long windows do not compare every token with every other. A compiler
        # does not know how many blocks there will be.
        blocks = [query] if is_traced(query) else query.split(L, 1)
        for block, rows in enumerate(blocks):  # (B, n, S)
            n = rows.shape[1]
            table = rows @ key[:, block * L : block * L + n + L].mT  # (B, n, n + L)
            seen = self._seen(n, query.device)  # (n, L)
            found.append(table.gather(-1, seen.expand(table.shape[0], n, L)))  # (B, n, L)
        score = torch.cat(found, 1)
        return score.to(at_least_float32(score.dtype))

    def _seen(self, length: int, device: torch.device) -> Tensor:
        """The pairs (T, L) that each token sees, by their place."""
        first = torch.arange(length, device=device)[:, None]
        return first + torch.arange(self.num_states, device=device)
