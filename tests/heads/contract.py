"""The heads that the contract is checked on: all of `HEADS`, composed ones, and other options.

T time, B sequences, D hidden size, E embedding size, V vocabulary.
"""

import inspect
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from highrank.heads import HEADS, Head, head_arguments, head_class
from highrank.heads.bases.component import components_of

T, B, D, E, V = 5, 3, 6, 4, 11
# Options that make a head small, or its parts even.
USUAL = {
    "sparse-mos": {"balance": 0.0},
    "constant": {"num_topics": 2},
    "pointer": {"num_states": 4, "key_size": 3},
    "ngram": {"ngram_order": 3},
    "low-rank-mos": {"rank": 2},
    "doc": {"layer_sizes": (2, 4), "balance": 0.0},
    "mixtape": {"frequent_fraction": 0.3, "gate_size": 3},
    "partition": {"num_partitions": 3},
    "adaptive-softmax": {"frequent": 4},
    "adaptive-mos": {"frequent": 4},
}
# A training split for components that want one.
TEXT = np.random.default_rng(0).integers(0, V, 80)
NARROW = {"frequent": 3, "cutoffs": (7,), "div_value": 2.0}
# After the comma, how a head differs from the usual one.
VARIANTS = {
    "softmax, context": {"embedding_size": E},
    "mos, K=1": {"num_components": 1},
    "mos, linear": {"activation": "identity"},
    "moc, no bias": {"bias": False},
    "sparse-mos, m=1": {"num_active": 1},
    "mos+pointer": {},
    "mos+constant, no topics": {"num_topics": 0, "num_components": 1},
    "adaptive-softmax+pointer": {},
    "adaptive-mos+pointer+constant, mixed tail": {**NARROW, "mix_first_tail": True},
    "mos+pointer+ngram, joint": {"objective": "joint"},
    "partition+pointer": {},
    "mfs+constant, block": {"num_previous": 2},
    "low-rank-mos, hidden": {"embedding_size": None, "prior_bias": True},
    "doc, last layer": {"layers": (-1,), "layer_sizes": None},
    "mixtape, K=2": {"num_components": 2, "token_counts": None},
    "partition, linear": {"activation": "identity", "bias": False},
    "mfs, two layers": {"layers": (-2, -1), "layer_sizes": (2, 4)},
    "mfs, block": {"num_previous": 2},
    "pointwise, gss": {"logit_map": "gss:-1.5,2.5"},
    "pointwise, softcap": {"logit_map": "softcap:3", "num_components": 2},
    "pointwise, plif": {"logit_map": "plif:7,2", "num_components": 2},
    "adaptive-softmax, hidden": {"embedding_size": None},
    "adaptive-softmax, narrow": NARROW,
    "adaptive-softmax, no tail": {"frequent": V},
    "adaptive-mos, mixed tail": {**NARROW, "mix_first_tail": True},
}
PLAIN = "plain"
NAMES = (*HEADS, *VARIANTS, PLAIN)
# Options that fit this vocabulary only.
RANKS = ("frequent", "cutoffs")


class Plain(Head):
    """A head that states only its log-probabilities: softmax(z + log σ(z))."""

    def __init__(self, hidden_size, vocab_size):
        super().__init__(hidden_size, vocab_size)
        self.weight = nn.Parameter(torch.randn(vocab_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def log_prob_from(self, features):
        z = features @ self.weight.T + self.bias
        # No gradient reaches a bias of -inf.
        z = torch.where(self.bias == -torch.inf, 0.0, z)
        z = (z + nn.functional.logsigmoid(z)).masked_fill(self.bias == -torch.inf, -torch.inf)
        return z.log_softmax(-1, dtype=torch.promote_types(z.dtype, torch.float32))


def arguments_of(name):
    """Arguments that the constructor of this head has."""
    return {} if name == PLAIN else head_arguments(name.split(",")[0])


def new_head(name, vocab_size=V, device=None, dtype=None, **more):
    """A head as its constructor leaves it."""
    arguments, where = arguments_of(name), {"device": device, "dtype": dtype}
    kind = name.split(",")[0]
    values = {"num_components": 4, "token_counts": [7 * t % vocab_size for t in range(vocab_size)]}
    values = {key: value for key, value in (values | where).items() if key in arguments}
    size = arguments.get("embedding_size")
    if size is not None and size.default is inspect.Parameter.empty:
        values["embedding_size"] = E
    for part in kind.split("+"):
        values |= USUAL.get(part, {})
    values |= VARIANTS.get(name, {}) | more
    if vocab_size != V:
        values = {key: value for key, value in values.items() if key not in RANKS}
    head = (Plain if name == PLAIN else head_class(kind))(D, vocab_size, **values)
    for component in components_of(head):
        component.fit(TEXT % vocab_size, ())
    return head.to(device, dtype)


def make_head(name, vocab_size=V, dtype=torch.float64, scale=0.7, **more):
    """A head with parameters in no special position."""
    head = new_head(name, vocab_size, **more).to(dtype)
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=scale)
    return head


class Window(NamedTuple):
    hidden: Tensor
    """(T, B, D)."""
    target: Tensor
    """(T, B)."""
    past: dict
    """Further arguments of a stateful head's methods."""


def make_window(head, length=T, batch_size=B):
    """Hidden states of the head's precision, and targets that are all tokens, if they fit."""
    dtype, size = next(head.parameters()).dtype, length * batch_size
    hidden = torch.randn(length, batch_size, head.hidden_size, dtype=dtype)
    tokens = torch.randint(head.vocab_size, (length, batch_size))
    target = (torch.randperm(size) % head.vocab_size).view(length, batch_size)
    past = {"tokens": tokens, "state": head.initial_state(batch_size)} if head.is_stateful else {}
    return Window(hidden.requires_grad_(), target, past)


def gradients(result, head, *inputs):
    """Gradients of the inputs and of all parameters, zeros where there is none."""
    leaves = [*inputs, *(p for p in head.parameters() if p.numel())]
    found = torch.autograd.grad(result, leaves, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, leaves, strict=True)]


def repeated(value, count):
    """The second sequence alone, so often: (…, count, …) from tensors (…, B, …)."""
    return tree_map(lambda x: x[:, 1:2].expand(x.shape[0], count, *x.shape[2:]), value)


def cut(prob, temperature=1.0, top_k=None, top_p=1.0):
    """Probabilities of one row after temperature and cuts, by sorting and counting."""
    prob = prob ** (1 / temperature)
    order = prob.argsort(descending=True)
    prob = prob / prob[order[:top_k]].sum()
    kept, mass = [], 0.0
    for token in order[:top_k].tolist():
        if mass < top_p:
            kept.append(token)
        mass += prob[token].item()
    return torch.zeros_like(prob).index_copy(0, torch.tensor(kept), prob[kept] / prob[kept].sum())


def log_prob_of(log_p, target):
    """log p of the targets, 0 where they are negative."""
    found = log_p.gather(-1, target.clamp(min=0)[..., None]).squeeze(-1)
    return torch.where(target < 0, 0.0, found)


def with_copies(head, prob, hidden, tokens):
    """log p (T, B, V) of a pointer beside `prob`, one token and one pair after the other."""
    rows, (pointer,) = [], head.components
    for t in range(len(hidden)):
        for b in range(hidden.shape[1]):
            pairs, row = range(max(0, t - pointer.num_states), t), prob[t, b]
            if pairs:
                query = pointer.query(hidden[t, b])
                score = torch.stack([query @ pointer.key(hidden[i, b]) for i in pairs])
                copied = torch.zeros_like(row)
                for i, weight in zip(pairs, score.softmax(-1), strict=True):
                    copied = copied + weight * nn.functional.one_hot(tokens[i + 1, b], len(row))
                gate = head.gate(hidden[t, b]).sigmoid()
                row = (1 - gate) * row + gate * copied
            rows.append(row)
    return torch.stack(rows).log().view_as(prob)
