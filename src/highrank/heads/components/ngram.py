"""An n-gram model of the training split beside a head: counts, with modified Kneser–Ney smoothing.

The model is that of `highrank.ngram`, and is not trained. The gate sees how much of each order's
mass is left to the lower ones, γ, and whether there was anything to count. Where the training split
itself is read, the token that is predicted has not been counted: leave-one-out, after all n - 1
tokens before it, also at the beginning of a stream. That is exact for this token; the others share
the rest as they do with it. T time, B streams, n order, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from highrank import ngram
from highrank.heads.bases.component import Component, components_of
from highrank.ops.precision import at_least_float32
from highrank.ops.tracing import in_torch_func

FOLDER = "ngram"
# Tokens of the training split from which n-grams that occur once, and twice, are pruned.
PRUNED_FROM = (10_000_000, 50_000_000)
# Less of the mass than this was not kept but rounded.
ROUNDED = 1e-9
# No target has this number.
NO_TOKEN = np.iinfo(np.int64).min


class Place(NamedTuple):
    """Inputs of a prediction."""

    context: Tensor  # (..., n - 1), the tokens before it; -1 before the first one
    backoff: Tensor  # (..., n - 1), γ of the orders 2 … n
    position: Tensor  # (..., 1), of the predicted token in the training split; -1 for another text


class NGramComponent(Component):
    """An interpolated Kneser–Ney n-gram model of the training split.

    Args:
        hidden_size, vocab_size: D and V.
        ngram_order: n; it predicts a token from the n - 1 before it.
        ngram_min_count: n-grams of more than two tokens that occur less often are pruned; if None,
            1 for up to 10 million tokens of training, then 2, from 50 million on 3.
        ngram_weight: its weight at the start.
    """

    name = "ngram"
    is_stateful = True
    reads_position = True
    data_files = tuple(f"{FOLDER}/{name}" for name in ngram.TABLE_FILES)
    learns_alone = True

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        ngram_order: int = 5,
        ngram_min_count: int | None = None,
        ngram_weight: float = 0.5,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        if ngram_order < 2:
            raise ValueError(f"ngram_order must be at least 2, got {ngram_order}")
        self.order, self.min_count, self.start_weight = ngram_order, ngram_min_count, ngram_weight
        self.num_features = 2 * (ngram_order - 1)
        # Of an empty text, which is the uniform distribution, until it is fitted or loaded.
        self.fit(np.empty(0, dtype=np.int64), ())

    def fit(self, tokens: NDArray[np.integer], token_counts: Sequence[int]) -> None:
        rare = sum(len(tokens) >= size for size in (0, *PRUNED_FROM))
        min_count = rare if self.min_count is None else self.min_count
        self.data = ngram.build(tokens, self.vocab_size, self.order, min_count)

    def save_data(self, folder: Path) -> None:
        ngram.save(folder / FOLDER, self.data)

    def load_data(self, folder: Path) -> None:
        data = ngram.load(folder / FOLDER)
        found, wanted = (data.table.order, data.table.vocab_size), (self.order, self.vocab_size)
        if found != wanted:
            raise ValueError(
                f"{folder / FOLDER} must be of order {wanted[0]} and {wanted[1]} tokens, got "
                f"{found[0]} and {found[1]}"
            )
        self.data = data

    def forget_text(self) -> None:
        self.data = self.data._replace(left_out=None)

    def initial_state(self, batch_size: int) -> Tensor:
        """The last n - 1 tokens of each stream, (n - 1, B); -1 before the first one."""
        return torch.full((self.order - 1, batch_size), -1)

    def context_length(self, hidden: int) -> int:
        return max(hidden, self.order - 1)

    @torch.no_grad()
    def advance(self, hidden: Tensor, tokens: Tensor, state: Any) -> Tensor:
        return self._joined(tokens, state)[len(tokens) :]

    @torch.no_grad()
    def inputs(
        self, hidden: Tensor, tokens: Tensor | None, state: Any, position: Tensor | None = None
    ) -> Place:
        assert tokens is not None
        # Rows t + 1 … t + n - 1 are the n - 1 tokens up to token t.
        read = self._joined(tokens, state)[1:]
        rows = [read[k : k + len(tokens)] for k in range(self.order - 1)]
        context = torch.stack(rows, -1)  # (T, B, n - 1)
        if tokens.is_meta:
            return Place(context, hidden.new_empty(context.shape), tokens[..., None])
        if in_torch_func():
            raise ValueError(
                "a head with an n-gram must be called outside of torch.func, got a call inside: "
                "its table is looked up on the host; torch.autograd works"
            )
        place = np.full(tokens.shape, -1)
        if position is not None:
            place = self._next(tokens.numpy(force=True), position.numpy(force=True))
        backoff = torch.from_numpy(self._backoff(read.numpy(force=True), place))
        dtype, device = at_least_float32(hidden.dtype), hidden.device
        position = torch.from_numpy(place)[..., None]
        return Place(context.to(device), backoff.to(device, dtype), position.to(device))

    def _backoff(self, read: Any, place: Any) -> Any:
        """γ (T, B, n - 1) after tokens (n - 2 + T, B), left out at these positions (T, B)."""
        known, found = place >= 0, np.empty((*place.shape, self.order - 1))
        if not known.all():
            found = self.data.table.backoff(self.data.table.contexts(read)[:, self.order - 2 :])
        if known.any():
            assert self.data.left_out is not None
            found[known] = self.data.left_out.backoff[place[known]]
        return found

    def _joined(self, tokens: Tensor, state: Any) -> Tensor:
        before = self.initial_state(tokens.shape[1]) if state is None else state
        return torch.cat((before.to(tokens.device), tokens.long()))

    def _next(self, tokens: Any, position: Any) -> Any:
        """Positions (T, B) of the tokens after these in the training split, -1 where none is."""
        known = position >= 0
        if not known.any():
            return position
        if self.data.left_out is None:
            raise ValueError(
                "position must be None for an n-gram without its training split, which can leave "
                "nothing out, got positions"
            )
        text = self.data.left_out.token
        largest = position.max()
        if largest >= len(text) or (text[position[known]] != tokens[known]).any():
            raise ValueError(
                f"position must be that of tokens in the training split of {len(text):,} tokens "
                f"which the n-gram counted, got other tokens at positions up to {largest:,}"
            )
        return np.where(known & (position + 1 < len(text)), position + 1, -1)

    def gate_features(self, inputs: Place) -> Tensor:
        is_seen = (inputs.backoff < 1 - ROUNDED).to(inputs.backoff.dtype)
        return torch.cat((inputs.backoff, is_seen), -1)

    def log_prob_of(self, inputs: Place, target: Tensor) -> Tensor:
        if target.is_meta:
            return inputs.backoff.new_empty(*target.shape, 1)
        wanted = target.numpy(force=True)
        token, found = self._left_out(inputs)
        if not ((wanted == token) | (wanted < 0)).all():
            contexts = self._numbers(inputs)
            counted = self.data.table.log_prob_of(contexts, wanted)
            counted += self._change(contexts, token, found)
            found = np.where(wanted == token, found, counted)
        return torch.from_numpy(found)[..., None].to(inputs.backoff)

    def log_prob(self, inputs: Place, log_gate: Tensor) -> Tensor:
        if log_gate.is_meta:
            return log_gate.expand(*log_gate.shape[:-1], self.vocab_size)
        contexts, (token, log_prob) = self._numbers(inputs), self._left_out(inputs)
        found = self.data.table.log_prob(contexts)  # (..., V)
        if (known := token >= 0).any():
            found += self._change(contexts, token, log_prob)[..., None]
            found[known, token[known]] = log_prob[known]
        return torch.from_numpy(found).to(inputs.backoff) + log_gate

    def _numbers(self, inputs: Place) -> Any:
        """(n, ...), of the contexts in the table."""
        tokens = np.moveaxis(inputs.context.numpy(force=True), -1, 0)  # (n - 1, ...)
        return self.data.table.contexts(tokens)[:, -1]

    def _left_out(self, inputs: Place) -> tuple[Any, Any]:
        """The predicted token of the training split (...), and its log p where it is not counted.

        The token is `NO_TOKEN` for another text.
        """
        place = inputs.position.numpy(force=True)[..., 0]
        known, left_out = place >= 0, self.data.left_out
        token, log_prob = np.full(place.shape, NO_TOKEN), np.zeros(place.shape)
        if known.any():
            assert left_out is not None
            token[known] = left_out.token[place[known]]
            log_prob[known] = left_out.log_prob[place[known]]
        return token, log_prob

    def _change(self, contexts: Any, token: Any, log_prob: Any) -> Any:
        """By how much log p of all other tokens changes (...) where one is left out."""
        known, change = token >= 0, np.zeros(token.shape)
        counted = self.data.table.log_prob_of(contexts[:, known], token[known])
        # Of the logarithms of what is left for them, 1 - p.
        change[known] = np.log(-np.expm1(log_prob[known])) - np.log(-np.expm1(counted))
        return change

    def resize(self, vocab_size: int) -> None:
        """Count the training split again, without tokens that are gone; new ones have none."""
        if self.data.left_out is None:
            raise ValueError("an n-gram without its training split cannot be resized")
        super().resize(vocab_size)
        text = self.data.left_out.token
        self.fit(text[text < vocab_size], ())


def table_size(model: nn.Module) -> ngram.TableSize | None:
    """What n-grams add to the parameters of a model or a head; None without them."""
    found = [c.data.table.size for c in components_of(model) if isinstance(c, NGramComponent)]
    total = (sum(size.num_ngrams for size in found), sum(size.num_bytes for size in found))
    return ngram.TableSize(*total) if found else None
