"""Normalise the rows of a chunk over the vocabulary: of one process, or of several.

A process of several has some rows of the output embedding, and all of the tokens. A softmax needs
of the other processes only the largest logit, the sum of exponentials and the target's logit:
three numbers for each token and component.
R rows of logits, M targets of a row, N tokens, V tokens of the vocabulary that are here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.mixture_cross_entropy.reference import Inputs
from highrank.ops.sharding import (
    VocabularyShard,
    all_reduce_sum,
    all_reduce_sums,
    row_argmax,
    row_max,
)
from highrank.ops.tracing import is_static


class Softmaxes(NamedTuple):
    """The softmaxes q / total of some rows of logits."""

    q: Tensor  # (R, V)
    total: Tensor | None  # (R, 1), None for ones
    log_q: Tensor  # (R,), normalised, of the targets
    lse: Tensor | None  # (R, 1)


class Reducer:
    """The reducer of one process that has the whole vocabulary: it exchanges nothing."""

    is_trivial = True

    def most_rows(self, weight: Tensor) -> int:
        """The largest number of tokens of the vocabulary that a process has."""
        return len(weight)

    def has_softmaxes(self, context: Tensor) -> bool:
        """Whether `softmaxes` works for these contexts."""
        # The host has to look for underflow: not on an accelerator.
        return not is_static(context)

    def softmaxes(
        self, z: Tensor, target: Tensor, rows: Tensor, part: Inputs, with_lse: bool
    ) -> Softmaxes:
        """Softmaxes of logits z (R, V), which are overwritten, and log-probabilities of targets.

        Args:
            rows: contexts (R, E) of the logits.
            target: (R, 1).
        """
        lse = z.logsumexp(-1, keepdim=True) if with_lse else None  # (R, 1)
        target_logit = z.gather(1, target)  # (R, 1)
        # In half precision a logit computed again may be rounded to another one.
        top_logit = z.amax(-1) if rows.dtype != z.dtype else None  # (R,)
        q = torch.softmax(z, -1, out=z)  # (R, V)
        log_q = _log_probability(q, target_logit, top_logit, rows, part, target)
        return Softmaxes(q, None, log_q, lse)

    def logsumexp(self, z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log-sum-exps (R, 1) of logits z (R, V), and the logits of the targets (R, M)."""
        return z.logsumexp(-1, keepdim=True), z.gather(1, target)

    def log_softmax(self, z: Tensor) -> Tensor:
        """Log-probabilities (R, V) from logits z (R, V), which may be overwritten."""
        return z.log_softmax(-1)

    def scatter_add(self, table: Tensor, target: Tensor, values: Tensor) -> Tensor:
        """The table (R, V) with values (R, M) added at the targets, in place."""
        return table.scatter_add_(1, target, values)

    def sum(self, *tensors: Tensor) -> Sequence[Tensor]:
        """The sum of each tensor over the processes."""
        return tensors

    def argmax(self, prob: Tensor) -> Tensor:
        """The likeliest token (N,) of probabilities (N, V)."""
        return prob.argmax(-1)

    def entropy(self, prob: Tensor) -> Tensor:
        """The entropy (N,) of probabilities (N, V)."""
        entropy: Tensor = torch.special.entr(prob).sum(-1)
        return entropy

    def sum_in_place(self, gradient: Tensor) -> Tensor:
        """The sum of a gradient over the processes, in place; not repeated by `replay`."""
        return gradient

    def replay(self) -> "Reducer":
        """A reducer for the same chunks again, without exchanging anything again."""
        return self


ONE_PROCESS = Reducer()


class ShardReducer(Reducer):
    """The reducer of a process that has some rows of the vocabulary.

    Args:
        known: what the processes agreed on in an earlier pass over the same chunks.
    """

    is_trivial = False

    def __init__(self, shard: VocabularyShard, known: Sequence[Sequence[Tensor]] = ()) -> None:
        self.shard, self.known = shard, iter(known)
        self.agreed: list[Sequence[Tensor]] = []

    def most_rows(self, weight: Tensor) -> int:
        # A vocabulary may be smaller than the number of processes.
        return max(1, self.shard.most_rows)

    def has_softmaxes(self, context: Tensor) -> bool:
        # The totals, which stand in the slope, may be too large for it.
        return context.dtype != torch.float16

    def softmaxes(
        self, z: Tensor, target: Tensor, rows: Tensor, part: Inputs, with_lse: bool
    ) -> Softmaxes:
        top, target_logit = self._row_max(z), self._gather(z, target)  # (R, 1)
        q = z.sub_(top).exp_()  # (R, V)
        total, target_logit = self.sum(q.sum(-1, keepdim=True), target_logit)  # (R, 1)
        lse = top + total.log()  # (R, 1)
        return Softmaxes(q, total, (target_logit - lse).squeeze(1), lse)

    def logsumexp(self, z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        lse, target_logit = z.logsumexp(-1, keepdim=True), self._gather(z, target)
        top = self._row_max(lse)  # (R, 1)
        total, target_logit = self.sum((lse - top).exp(), target_logit)
        return top + total.log(), target_logit

    def log_softmax(self, z: Tensor) -> Tensor:
        lse, _ = self.logsumexp(z, z.new_empty(len(z), 0, dtype=torch.long))
        return z.sub_(lse)

    def scatter_add(self, table: Tensor, target: Tensor, values: Tensor) -> Tensor:
        if not table.shape[1]:
            return table
        is_here, index = self._locate(target)
        return table.scatter_add_(1, index, values.masked_fill(~is_here, 0.0))

    def sum(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._agree(lambda: all_reduce_sums(tensors, self.shard))

    def argmax(self, prob: Tensor) -> Tensor:
        return row_argmax(prob, self.shard)

    def entropy(self, prob: Tensor) -> Tensor:
        return all_reduce_sum(super().entropy(prob), self.shard)

    def sum_in_place(self, gradient: Tensor) -> Tensor:
        return all_reduce_sum(gradient, self.shard)

    def replay(self) -> "ShardReducer":
        return ShardReducer(self.shard, self.agreed)

    def _agree(self, exchange: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        found = next(self.known, None)
        if found is None:
            found = exchange()
        self.agreed.append(found)
        return found

    def _row_max(self, z: Tensor) -> Tensor:
        """The largest of each row in all processes (R, 1)."""
        return self._agree(lambda: [row_max(z, self.shard)])[0]

    def _gather(self, z: Tensor, target: Tensor) -> Tensor:
        """The logits of the targets (R, M), 0 for those that are elsewhere."""
        if not z.shape[1]:
            return z.new_zeros(target.shape)
        is_here, index = self._locate(target)
        return z.gather(1, index).masked_fill(~is_here, 0.0)

    def _locate(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each target is here, and its column; 0 for the others."""
        is_here = (target >= self.shard.start) & (target < self.shard.stop)
        return is_here, (target - self.shard.start).masked_fill(~is_here, 0)


def _log_probability(
    q: Tensor,
    target_logit: Tensor,
    top_logit: Tensor | None,
    rows: Tensor,
    inputs: Inputs,
    index: Tensor,
) -> Tensor:
    """log q[index] (R,), also where q[index] is too small for the dtype.

    Args:
        top_logit: the largest of each row, (R,); computed again where it is needed if None.
    """
    target_q = q.gather(1, index).squeeze(1)  # (R,)
    log_q = target_q.log()
    # 1e-30 leaves float32 all its digits: the smallest normal number is 1e-38.
    small = (target_q < 1e-30).nonzero().squeeze(1)
    if len(small):
        # Relative to the likeliest token, whose logit is cheap to compute again.
        top_q, top = q[small].max(-1)  # (S,)
        if top_logit is not None:
            largest = top_logit[small]  # (S,)
        else:
            largest = (rows[small] * inputs.weight[top]).sum(-1)
            if inputs.bias is not None:
                largest += inputs.bias[top]
            if inputs.logit_map is not None:
                largest = inputs.logit_map(largest)
        log_q[small] = target_logit.squeeze(1)[small] - largest + top_q.log()
    return log_q
