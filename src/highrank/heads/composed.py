"""A head with further components beside it, such as a pointer.

    p(token) = g_0 · p_base(token) + Σ_j g_j · q_j(token),   g = softmax(0, G [s, f] + c)

The base is any head, s the hidden state, f what components let the gate see (`Component`). The loss
needs q_j of the target only, so that a component costs nothing per token of the vocabulary; where
the base has a fused loss, the further terms are a part of it. There are two ways of training:

    joint   one loss, -log p: base and components share each token by what they explain of it
    own     the base learns by -log p_base, as if it were alone, each component by -log q of the
            tokens that it can predict, and the gate, on top of both, by -log p

A component that is good from the start explains most tokens: jointly trained, the base gets hardly
any gradient and stays behind. The value of the loss is -log p in both. N tokens, D hidden size,
J terms of all components, V vocabulary; `...` is any leading dimensions.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_map

from highrank.heads.bases.component import Component
from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import log_weights
from highrank.heads.bases.output import Beside, LossSettings, MeasuredOutput
from highrank.heads.bases.past import PAST, check_past
from highrank.ops.loss import Target, check_target_shape
from highrank.ops.loss.targets import Targets, reduce_losses, weight_losses
from highrank.ops.mixed_linear import through
from highrank.ops.precision import log_add, log_sum
from highrank.signatures import arguments_of

Objective = Literal["auto", "joint", "own"]


class Features(NamedTuple):
    base: Any
    """Those of the base."""
    gate: Tensor
    """(..., J), the logits of g_1 … g_J; that of g_0 is 0."""
    inputs: tuple[Any, ...]
    """Those of each component."""


class Composed(Head):
    """A base and further components, weighted by a gate.

    Args:
        base: any head, also one that is composed.
        components: at least one, of the base's sizes.
        objective: "joint" or "own"; a base that learns by "own" takes no other. "auto" takes "own"
            for components that are good from the start, around a head of the others, and "joint" if
            there are none.
    """

    def __init__(
        self, base: Head, components: Sequence[Component], objective: Objective = "auto"
    ) -> None:
        super().__init__(base.hidden_size, base.vocab_size)
        if objective == "auto":
            alone = [one for one in components if one.learns_alone]
            joined = [one for one in components if not one.learns_alone]
            if alone and joined:
                base, components = Composed(base, joined), alone
            is_own = alone or getattr(base, "objective", None) == "own"
            objective = "own" if is_own else "joint"
        _check_parts(base, components, objective)
        self.base, self.objective = base, objective
        self.components = nn.ModuleList(components).to(next(base.parameters()))
        self.num_components, self.layers = base.num_components, base.layers
        self.batch_first = base.batch_first
        self._terms = [component.num_terms for component in components]
        num_features = sum(component.num_features for component in components)
        self.gate = self._linear(self.hidden_size + num_features, sum(self._terms))
        self._start_gate()

    @property
    def parts(self) -> list[Any]:
        """The components."""
        return list(self.components)

    @property
    def core(self) -> Head:
        return self.base.core

    def __getattr__(self, name: str) -> Any:
        # The output embedding, its size and the bias of each token are those of the base.
        if name in ("weight", "embedding_size", "bias"):
            return getattr(self.base, name)
        return super().__getattr__(name)

    def reset_parameters(self) -> None:
        for part in (self.base, *self.parts):
            part.reset_parameters()
        self._start_gate()

    @torch.no_grad()
    def _start_gate(self) -> None:
        """A gate that does not depend on the hidden state, with the asked weights."""
        weights = [component.start_weight for component in self.parts]
        terms = zip(weights, self._terms, strict=True)
        logits = [math.log(w / n / (1 - sum(weights))) for w, n in terms for _ in range(n)]
        self.gate.weight.zero_()
        self.gate.bias.copy_(torch.tensor(logits))

    def tie(self, weight: Any) -> None:
        self.base.tie(weight)

    def scale_embedding(self, factor: float) -> None:
        self.base.scale_embedding(factor)

    def start_at_unigram(self, token_counts: Sequence[int]) -> None:
        self.base.start_at_unigram(token_counts)

    def resize(self, vocab_size: int) -> None:
        for part in (self.base, *self.parts):
            part.resize(vocab_size)
        self.vocab_size = vocab_size

    @property
    def is_stateful(self) -> bool:
        return any(part.is_stateful for part in (self.base, *self.parts))

    def context_length(self, hidden: int) -> int | None:
        found = [part.context_length(hidden) for part in (self.base, *self.parts)]
        return None if None in found else max(found)

    def initial_state(self, batch_size: int) -> tuple[Any, ...]:
        """A state of each part; () for those that have none."""
        parts = (self.base, *self.parts)
        return tuple(p.initial_state(batch_size) if p.is_stateful else () for p in parts)

    def advance(self, hidden: Tensor, tokens: Tensor, state: Any) -> tuple[Any, ...]:
        check_past(self, hidden, tokens, state)
        before, *states = state
        found = self.base.advance(hidden, tokens, before) if self.base.is_stateful else ()
        hidden, tokens = self._time_first((hidden, tokens))
        pairs = zip(self.parts, states, strict=True)
        return found, *(c.advance(hidden, tokens, s) if c.is_stateful else () for c, s in pairs)

    def features(self, hidden: Tensor, **past: Any) -> Features:
        self._check_hidden(hidden)
        tokens, state, position = (past.get(name) for name in PAST)
        if self.is_stateful:
            if tokens is None:
                raise ValueError(f"tokens must be given to {type(self).__name__}, got None")
            check_past(self, hidden, tokens, state)
        states = [None] * (1 + len(self.components)) if state is None else state
        h, x, place = self._time_first((hidden, tokens, position))
        inputs = tuple(
            self._time_first(component.inputs(h, x, own, place))
            for component, own in zip(self.parts, states[1:], strict=True)
        )
        base = self.base.features(hidden, **self._base_past(past))
        return Features(base, self._gate_logits(hidden, inputs), inputs)

    def _base_past(self, past: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the base besides the hidden states."""
        if not self.base.is_stateful:
            return {}
        state = past.get("state")
        return past | {"state": None if state is None else state[0]}

    def _time_first(self, tree: Any) -> Any:
        """Tensors (T, B, …) from those of a head with `batch_first`, or the other way round."""
        if not self.batch_first or not self.is_stateful:
            return tree
        return tree_map(lambda x: x if x is None else x.transpose(0, 1), tree)

    def _gate_logits(self, hidden: Tensor, inputs: Sequence[Any]) -> Tensor:
        """(..., J), closed where a component has nothing to predict."""
        pairs = list(zip(self.parts, inputs, strict=True))
        seen = [c.gate_features(own).to(hidden.dtype) for c, own in pairs if c.num_features]
        known = torch.cat((hidden, *seen), -1)  # (..., D + F)
        logits = through(self.gate, known if self.objective == "joint" else known.detach())
        # The smallest number rather than -inf: its gate is 0, and its gradient is not NaN.
        least, parts = torch.finfo(logits.dtype).min, []
        for (component, own), part in zip(pairs, logits.split(self._terms, -1), strict=True):
            possible = component.is_possible(own)
            parts.append(part if possible is None else part.masked_fill(~possible, least))
        return torch.cat(parts, -1)

    def penalty(self, hidden: Tensor, **past: Any) -> Tensor | float:
        return self.base.penalty(hidden, **self._base_past(past))

    def log_gate(self, features: Features) -> Tensor:
        """log g, (..., 1 + J), normalised: the weight of the base comes first."""
        return log_weights(F.pad(features.gate, (1, 0)))

    def log_prob_from(self, features: Features) -> Tensor:
        log_gate = self.log_gate(features)
        log_p = self.base.log_prob_from(features.base) + log_gate[..., :1]  # (..., V)
        gates = log_gate[..., 1:].split(self._terms, -1)
        for component, own, part in zip(self.parts, features.inputs, gates, strict=True):
            log_p = log_add(log_p, component.log_prob(own, part))
        return log_p

    def _loss(self, features: Features, target: Target, settings: LossSettings) -> MeasuredOutput:
        """The base's loss with further terms; all log-probabilities where it needs more."""
        is_own, options = self.objective == "own", settings.options
        is_soft = isinstance(target, tuple) or options.get("label_smoothing")
        if isinstance(target, tuple) or is_soft or is_own or options.get("shift"):
            if is_soft and is_own and torch.is_grad_enabled():
                raise ValueError("target must be ids, unsmoothed, for objective own, got others")
            return super()._loss(features, target, settings)
        check_target_shape(target, tuple(features.gate.shape[:-1]))
        log_gate, log_q = self.terms_of(features, target)
        if settings.beside is not None:
            outer, others = settings.beside
            log_gate = torch.cat((log_gate + outer[..., :1], outer[..., 1:]), -1)
            log_q = torch.cat((log_q, others), -1)
        settings = settings._replace(beside=Beside(log_gate, log_q))
        return self.base._loss(features.base, target, settings)

    def terms_of(self, features: Features, target: Tensor) -> Beside:
        """What stands beside the base, and the gate of both, for targets (...)."""
        pairs = zip(self.parts, features.inputs, strict=True)
        log_q = torch.cat([component.log_prob_of(own, target) for component, own in pairs], -1)
        return Beside(self.log_gate(features), log_q)

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of the terms beside the softmaxes: of the base's components, then of its own."""
        numbered = [range(1, n + 1) if n > 1 else ("",) for n in self._terms]
        pairs = zip(self.parts, numbered, strict=True)
        own = (f"{part.name} {number}".strip() for part, each in pairs for number in each)
        return (*(self.base.beside if isinstance(self.base, Composed) else ()), *own)

    def _log_beside(self, features: Features, target: Tensor) -> Tensor:
        """Logarithms (..., J) of what these terms add to the probability of targets (...)."""
        log_gate, log_q = self.terms_of(features, target)
        found = [log_gate[..., 1:] + log_q]
        if isinstance(self.base, Composed):
            found.insert(0, self.base._log_beside(features.base, target) + log_gate[..., :1])
        return torch.cat(found, -1)

    @torch.no_grad()
    def shares(self, hidden: Tensor, target: Tensor, **past: Any) -> Tensor:
        """Fractions (..., 1 + J) of the targets' probability: all softmaxes, then `beside`.

        Args:
            hidden: (..., D).
            target: (...), token ids.
            past: `tokens` and `state`, of a head that looks back.
        """
        features = self.features(hidden, **past)
        log_p = self.log_prob_from(features).gather(-1, target[..., None])  # (..., 1)
        beside = (self._log_beside(features, target) - log_p).exp().clamp(max=1.0)  # (..., J)
        return torch.cat([(1 - beside.sum(-1, keepdim=True)).clamp(min=0.0), beside], -1)

    def _flat_loss(
        self, features: Features, targets: Targets, settings: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """-log p with gradients of the gate, to which those of the parts' own losses are added."""
        reduction, is_plain = settings.reduction, targets.scale is None
        if self.objective == "joint" or not targets.has_ids_only:
            return super()._flat_loss(features, targets, settings)

        def reduced(token_loss: Tensor) -> Tensor:
            return reduce_losses(weight_losses(token_loss, targets.scale), targets.mass, reduction)

        target = targets.target.squeeze(1)  # (N,)
        chunk_bytes = settings.options.get("chunk_bytes")
        how = LossSettings(
            reduction if is_plain else "none", -100, (), {"chunk_bytes": chunk_bytes}
        )
        log_p, loss, _ = self.base._loss(features.base, target, how)
        losses = [loss if is_plain else reduced(loss)]
        log_gate, log_q = self.terms_of(features, target)
        gates = log_gate.detach()[:, 1:].split(self._terms, -1)
        for gate, part in zip(gates, log_q.split(self._terms, -1), strict=True):
            log_part = log_sum(gate.log_softmax(-1) + part, -1)  # (N,)
            losses.append(reduced(-log_part.masked_fill(log_part == -torch.inf, 0.0)))
        mixed = Beside(log_gate, log_q.detach()).log_mixed(log_p.detach()[:, None])  # (N, 1)
        token_loss = -mixed.squeeze(-1)
        found: Tensor = _WithGradientsOf.apply(reduced(token_loss), *losses)
        return found if reduction == "none" else weight_losses(token_loss, targets.scale), found


class _WithGradientsOf(Function):
    """The value of the first, with the gradients of all."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor) -> Tensor:
        ctx.count = 1 + len(others)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, ...]:
        return tuple(upstream for _ in range(ctx.count))


def _check_parts(base: Head, components: Sequence[Component], objective: str) -> None:
    if objective not in ("joint", "own"):
        raise ValueError(f"objective must be auto, joint or own, got {objective!r}")
    if objective == "joint" and getattr(base, "objective", None) == "own":
        raise ValueError("objective must be own around a base of objective own, got joint")
    sizes = [(component.hidden_size, component.vocab_size) for component in components]
    wrong = [size for size in sizes if size != (base.hidden_size, base.vocab_size)]
    if wrong or not sizes:
        raise ValueError(f"components must be some of the base's sizes, got {wrong or 'none'}")
    weights = [component.start_weight for component in components]
    if min(weights) <= 0 or sum(weights) >= 1:
        raise ValueError(f"start weights must be above 0 and sum to less than 1, got {weights}")


@cache
def composed_class(
    kind: str, base: type[Head], components: tuple[type[Component], ...]
) -> type[Composed]:
    """The class of a kind such as adaptive-softmax+pointer: its options are those of all parts."""

    class Kind(Composed):
        """A head and further components.

        Args:
            objective: joint trains by one loss; own trains base and components by losses of their
                own, and the gate on top; auto takes own for components that need no training.
        """

        title = " + ".join((base.title, *(one.name for one in components)))
        default_components = 1
        options_of = (base, *components)
        layers = base.layers

        def __init__(
            self,
            hidden_size: int,
            vocab_size: int,
            *,
            objective: Objective = "auto",
            **options: Any,
        ) -> None:
            known = [set(arguments_of(one)) for one in components]
            further = set().union(*known) - set(arguments_of(base))
            head = base(
                hidden_size, vocab_size, **{n: v for n, v in options.items() if n not in further}
            )
            found = [
                one(head.hidden_size, vocab_size, **{n: options[n] for n in names & set(options)})
                for one, names in zip(components, known, strict=True)
            ]
            super().__init__(head, found, objective)

        def __reduce__(self) -> Any:
            return _new_kind, (kind, base, components), self.__dict__

    Kind.__name__ = Kind.__qualname__ = kind
    return Kind


def _new_kind(*parts: Any) -> Composed:
    kind = composed_class(*parts)
    return kind.__new__(kind)
