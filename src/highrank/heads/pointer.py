"""A trained pointer beside a mixture of softmaxes: it copies tokens of the recent past.

Merity, Xiong, Bradbury and Socher (2017), arXiv 1609.07843, with the pairs of the neural cache of
Grave, Joulin and Usunier (2017), arXiv 1612.04426: what followed a state like the present one.

    p(token) = (1 - g_t) · Σ_k π_k softmax(W h_k + b)[token] + g_t · Σ_{i: x_{i+1} = token} a_ti
    a_t = softmax_i(query(s_t) · key(s_i)),  i = t - L … t - 1,  g_t = σ(gate(s_t))

s_t is the hidden state after token x_t. Keys of earlier windows are remembered, without gradient.
No window changes a probability. Before the first pair of a stream there is nothing to point at.
With K = 1 the rank of log p is at most E + 2 plus the number of different tokens ever in memory.
T time, B streams, D hidden size, K softmaxes, L pairs that are remembered, S size of a key.
"""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from highrank.heads.bases.extra import Extended, ExtendedMixture, log_gates
from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import PriorOptions
from highrank.heads.bases.past import check_past
from highrank.heads.bases.token_rows import check_sizes
from highrank.heads.mos import MixtureOfSoftmaxes
from highrank.ops.precision import at_least_float32
from highrank.ops.tracing import is_traced


class Memory(NamedTuple):
    """The last L states of each stream, the newest last."""

    key: Tensor
    """(L, B, S)."""
    token: Tensor
    """(L, B), the token that led to the state; -1 before the first one."""


class Pointed(NamedTuple):
    log_attention: Tensor
    """(..., L), normalised over the pairs that exist."""
    candidate: Tensor
    """(..., L), the token of each pair; -1 where there is none."""


class Pointing(Head):
    """Base of heads with a pointer: queries and keys, the memory, attention and the gate.

    A subclass has the linear layer `gate` from the hidden state to the logit of g.
    """

    gate: nn.Linear
    beside = ("pointer",)

    def log_beside(self, features: Any, target: Tensor) -> Tensor:
        return log_gates(features.gate)[..., 1:] + self.extra_log_prob_of(features.extra, target)

    @property
    def is_stateful(self) -> bool:
        return True

    def _make_pointer(self, num_states: int, key_size: int) -> None:
        check_sizes(num_states=num_states, key_size=key_size)
        self.num_states, self.key_size = num_states, key_size
        self.query = self._linear(self.hidden_size, key_size, bias=False)
        self.key = self._linear(self.hidden_size, key_size, bias=False)

    def _start_pointer(self) -> None:
        """Queries and keys start equal: attention is on what followed similar states, as a cache.

        A random projection of this size leaves products of states as they are, on average.
        """
        nn.init.normal_(self.key.weight, std=self.key_size**-0.5)
        with torch.no_grad():
            self.query.weight.copy_(self.key.weight)

    def initial_state(self, batch_size: int) -> Memory:
        weight = self.key.weight
        key = weight.new_zeros(self.num_states, batch_size, self.key_size)
        empty = torch.full((self.num_states, batch_size), -1, device=weight.device)
        return Memory(key, empty)

    @torch.no_grad()
    def advance(self, hidden: Tensor, tokens: Tensor, state: Memory) -> Memory:
        check_past(self, hidden, tokens, state)
        if self.batch_first:
            hidden, tokens = hidden.transpose(0, 1), tokens.transpose(0, 1)
        key, token = self._joined(self.key(hidden), tokens, state)
        return Memory(key[-self.num_states :], token[-self.num_states :])

    def extra(
        self,
        hidden: Tensor,
        tokens: Tensor | None = None,
        state: Memory | None = None,
        **past: Any,
    ) -> Pointed:
        self._check_hidden(hidden)
        if tokens is None:
            raise ValueError(f"tokens must be given to {type(self).__name__}, got None")
        check_past(self, hidden, tokens, state)
        if not self.batch_first:
            return self._pointed(hidden, tokens, state)
        pointed = self._pointed(hidden.transpose(0, 1), tokens.transpose(0, 1), state)
        return Pointed(*(part.transpose(0, 1) for part in pointed))

    def _pointed(self, hidden: Tensor, tokens: Tensor, state: Memory | None) -> Pointed:
        """Attention (T, B, L) for hidden states (T, B, D) after tokens (T, B)."""
        if hidden.shape[0] == 0:
            shape = (*hidden.shape[:-1], self.num_states)
            return Pointed(hidden.new_empty(shape), tokens.new_empty(shape))
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

    def extra_log_prob_of(self, extra: Pointed, target: Tensor) -> Tensor:
        # As logsumexp over the pairs with this token, which takes three times as long.
        missed = extra.candidate != target[..., None]  # (..., L)
        log_part = extra.log_attention.masked_fill(missed, -torch.inf)
        top = log_part.detach().amax(-1, keepdim=True)  # (..., 1)
        nowhere = top == -torch.inf
        top = top.masked_fill(nowhere, 0.0)
        total = (log_part - top).exp().sum(-1, keepdim=True).masked_fill(nowhere, 1.0)
        return (total.log() + top).masked_fill(nowhere, -torch.inf)

    def extra_log_prob(self, extra: Pointed, log_gate: Tensor) -> Tensor:
        log_attention, candidate = extra
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

    def _possible(self, gate: Tensor, extra: Pointed) -> Tensor:
        """The gate's logits (T, B, 1), closed where there is nothing to point at."""
        # The smallest number rather than -inf: its gate is 0, and its gradient is not NaN.
        nothing = (extra.candidate < 0).all(-1, keepdim=True)  # (T, B, 1)
        return gate.masked_fill(nothing, torch.finfo(gate.dtype).min)


class Pointer(Pointing, ExtendedMixture):
    """K softmaxes and a pointer to the tokens that followed the last L states.

    Args:
        hidden_size, vocab_size: D and V.
        num_components: K, the softmaxes; one is a softmax over tanh(Linear(hidden)).
        embedding_size: E.
        num_states: L, how many states the pointer remembers.
        key_size: S, the size of its keys and queries.
        pointer_weight: g, the pointer's weight at the start.
        options: activation, dropout, bias, start_noise, batch_first, device and dtype, as of
            `MixtureOfSoftmaxes`.
    """

    title = "Pointer"
    default_components = 1
    options_of = MixtureOfSoftmaxes

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        num_states: int = 400,
        key_size: int = 64,
        pointer_weight: float = 0.1,
        **options: Unpack[PriorOptions],
    ) -> None:
        softmaxes = MixtureOfSoftmaxes(
            hidden_size, vocab_size, num_components, embedding_size, **options
        )
        super().__init__(softmaxes, num_extra=1, extra_weight=pointer_weight)
        self._make_pointer(num_states, key_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._start_pointer()

    def resize(self, vocab_size: int) -> None:
        self.softmaxes.resize(vocab_size)
        self.vocab_size = vocab_size

    def features(self, hidden: Tensor, **past: Any) -> Extended:
        found = super().features(hidden, **past)
        return found._replace(gate=self._possible(found.gate, found.extra))
