"""Contexts that heads are fitted to, and the softmax in whose place they are put.

A fit replaces one softmax q of a head; what else the head has stays as it is:

    p(token) = scale · q(column) + rest

    head                      columns of q                     scale and rest
    one softmax               the tokens                       1 and 0
    – over many tokens        those of the samples             what all of these have of p
    adaptive softmax          frequent tokens, a class of      what the tail gives its token
                              each tail
    with further components   those of the base                the gate; what the components give

N contexts, D hidden size, d size of what meets the output embedding, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from highrank.heads import Composed, Head, MixtureHead, MixtureOfSoftmaxes, Softmax
from highrank.heads.bases.adaptive import AdaptiveHead
from highrank.heads.bases.embedding import Activation
from highrank.heads.linear import LinearHead
from highrank.ops.precision import log_add, log_sum
from highrank.predictor import Predictor, Tokens, read_contexts
from highrank.progress import OnProgress
from highrank.studies.audit.model import AuditedModel

# Contexts that are read at most, of the three texts.
NUM_LEARNED, NUM_CHOSEN, NUM_HELD_OUT = 40_000, 10_000, 20_000
# And at least.
MIN_LEARNED, MIN_HELD_OUT = 2_000, 1_000
# Multiplies, V·d times contexts, that scoring all of them may take, and parameters times tokens
# that reading may: about half a minute on two cores.
SCORING, READING = 2e10, 2.5e12
# V·d from which a softmax is fitted over the tokens of the samples only, and at least over so many
# times d of them, as fewer have no bound.
LARGEST_HEAD, LEAST_COLUMNS = 12_000_000, 4
# Of a head that looks back: streams that are read side by side, so many tokens at once.
NUM_STREAMS, STREAM_WINDOW = 8, 64
# Tokens that are scored at once.
SCORED = 1024

OneSoftmax = MixtureHead | LinearHead


class Sample(NamedTuple):
    """Contexts and what follows them."""

    hidden: Tensor
    """(N, D)."""
    target: Tensor
    """(N,), columns of q."""
    log_scale: Tensor | None = None
    """(N,); None is 0."""
    log_rest: Tensor | None = None
    """(N,); None where no rest is."""

    def log_prob(self, log_q: Tensor) -> Tensor:
        """log p (N,) of the targets, from log q of theirs."""
        log_p = log_q if self.log_scale is None else log_q + self.log_scale
        return log_p if self.log_rest is None else log_add(log_p, self.log_rest)

    def rows(self, index: Tensor) -> "Sample":
        """Some of the contexts."""
        return Sample(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]


class Samples(NamedTuple):
    learned: Sample
    """What heads are fitted to."""
    chosen: Sample
    """What decides which step of a fit is taken."""
    held_out: Sample
    """What they are compared on."""


class Part(NamedTuple):
    """Contexts of a window, T time, B streams."""

    hidden: Tensor
    """(T, B, D)."""
    features: Any
    """Those of the head."""
    target: Tensor
    """(T, B), token ids."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """All that a fit needs."""

    head: OneSoftmax
    """The softmax that is replaced, over the columns."""
    part: str
    """Which one of the model it is: " over …" and " beside …", or nothing where it is all."""
    samples: Samples


def why_not(predictor: Predictor, model: AuditedModel) -> str:
    """Why no heads can be fitted to a model; empty if they can."""
    core = predictor.head.core
    is_softmax = isinstance(core, LinearHead | Softmax | MixtureOfSoftmaxes | AdaptiveHead)
    if not is_softmax or core.num_components > 1:
        return "heads are fitted to models with one softmax only"
    if NUM_LEARNED * readable(predictor) < MIN_LEARNED:
        return "the model is too large to fit heads to it within a minute"
    train, _, held_out = split_text(model)
    if len(train) <= MIN_LEARNED or len(held_out) <= MIN_HELD_OUT:
        return "the text is too short to fit heads to it"
    return ""


def readable(predictor: Predictor) -> float:
    """The fraction of all contexts that a model of this size reads."""
    core = predictor.head.core
    size = core.vocab_size * getattr(core, "embedding_size", core.hidden_size)
    embeddings = size * (1 if predictor.is_tied else 2)
    # Each context is read behind as long a history.
    cost = 2 * max(1, predictor.num_parameters - embeddings)
    return min(1.0, READING / cost / (NUM_LEARNED + NUM_CHOSEN + NUM_HELD_OUT))


def split_text(model: AuditedModel) -> tuple[Tokens, Tokens, Tokens]:
    """The texts to learn from, to choose a step by, and to compare on.

    The first is the model's training text; without one the first three fifths of the audited text
    take its place. Of what is left, a third chooses a step.
    """
    train, text = model.train, model.tokens
    if train is None:
        cut = len(text) * 3 // 5
        train, text = text[:cut], text[cut:]
    cut = len(text) // 3
    return train, text[:cut], text[cut:]


def read_material(
    predictor: Predictor, model: AuditedModel, on_progress: OnProgress | None = None
) -> Material:
    """Contexts of the three texts; fewer of a large model, or head, where that takes long."""
    head, fraction = predictor.head, readable(predictor)
    core, q = head.core, first_softmax(head.core)
    is_large = q.weight.numel() > LARGEST_HEAD
    num_scored = NUM_HELD_OUT if is_large else int(SCORING / q.weight.numel())
    num_scored = max(MIN_HELD_OUT, min(int(NUM_HELD_OUT * fraction), num_scored))
    most_of = (int(NUM_LEARNED * fraction), num_scored // 2, num_scored)
    read, found = _streams if head.is_stateful else _windows, []
    for index, (tokens, most) in enumerate(zip(split_text(model), most_of, strict=True)):
        parts = read(predictor, model, tokens, most, on_progress)
        found.append(_joined([_around(head, q, part, is_learned=index == 0) for part in parts]))
    samples, names = Samples(*found), []
    if isinstance(core, AdaptiveHead) and core.cutoffs:
        names.append(f" over the {core.num_frequent:,} most frequent tokens")
    if is_large:
        q, samples = _over_seen(q, samples)
        names.append(f" over {len(q.weight):,} tokens of the text")
    if isinstance(head, Composed):
        beside = [name.split(" ")[0] for name in head.beside]
        names.append(f" beside {' and '.join(dict.fromkeys(beside))}")
    return Material(head=q, part=",".join(names), samples=samples)


def first_softmax(core: Head) -> OneSoftmax:
    """The softmax of a head that is fitted: that of an adaptive one over its frequent tokens."""
    if not isinstance(core, AdaptiveHead):
        assert isinstance(core, MixtureHead | LinearHead)
        return core
    rows = core.order[: core.num_frequent]
    weight = core.weights[0] if core.is_banded else core.weight[rows]
    bias = None if core.bias is None else core.bias[rows]
    if core.class_weight is not None:
        weight = torch.cat((weight, core.class_weight))  # (R + m, E)
    if bias is not None and core.class_bias is not None:
        bias = torch.cat((bias, core.class_bias))  # (R + m,)
    latent = core.latents[0] if core.has_latent else None
    return softmax_of(weight, bias, core.hidden_size, latent, core.activation)


@torch.no_grad()
def softmax_of(
    weight: Tensor,
    bias: Tensor | None,
    hidden_size: int,
    latent: nn.Module | None,
    activation: Activation,
) -> Softmax:
    """A head with copies of these parameters."""
    size = None if latent is None else weight.shape[1]
    found = Softmax(
        hidden_size, len(weight), size, activation=activation, bias=bias is not None
    ).to(weight.device)
    found.weight.copy_(weight)
    if found.bias is not None and bias is not None:
        found.bias.copy_(bias)
    if found.latent is not None and latent is not None:
        found.latent.load_state_dict(latent.state_dict())
    return found.eval()


@torch.no_grad()
def _around(head: Head, q: OneSoftmax, part: Part, is_learned: bool) -> Sample:
    """Columns (T, B), scale and rest of a softmax of `head`, whose base learns as it did before."""
    hidden, features, target = part
    log_scale = torch.zeros(target.shape, device=hidden.device)
    log_rest = torch.full_like(log_scale, -torch.inf)
    while isinstance(head, Composed):
        # What is good from the start may have counted the training split.
        is_apart = head.objective == "own" or any(one.learns_alone for one in head.parts)
        if not (is_learned and is_apart):
            log_gate, log_q = head.terms_of(features, target)
            added = log_sum(log_gate[..., 1:] + log_q, -1)  # (T, B)
            log_rest = log_add(log_rest, log_scale + added)
            log_scale = log_scale + log_gate[..., 0]
        head, features = head.base, features.base
    if isinstance(head, AdaptiveHead) and head.cutoffs:
        log_p = head.log_prob_from(features).gather(-1, target[..., None])[..., 0]  # (T, B)
        place = head.order.argsort()[target]
        tail = torch.bucketize(place, place.new_tensor(head.cutoffs), right=True)
        target = torch.where(tail == 0, place, head.num_frequent + tail - 1)
        log_q = q.log_prob(hidden).gather(-1, target[..., None])[..., 0]
        log_scale = log_scale + _ratio(log_p, log_q)
    return Sample(hidden, target, log_scale, log_rest)


def _ratio(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log (p / q), -inf where both are 0."""
    return (log_p - log_q).masked_fill(log_p == -torch.inf, -torch.inf)


def _joined(parts: list[Sample]) -> Sample:
    """Contexts (N, …) on the CPU, stream after stream."""
    whole = (
        torch.cat(each).transpose(0, 1).flatten(0, 1).cpu() for each in zip(*parts, strict=True)
    )
    hidden, target, log_scale, log_rest = whole
    return Sample(
        hidden.float(),
        target,
        log_scale if log_scale.any() else None,
        None if log_rest.max() == -torch.inf else log_rest,
    )


def _over_seen(q: OneSoftmax, samples: Samples) -> tuple[OneSoftmax, Samples]:
    """The same over the columns that samples have, with what these have of p as a factor."""
    least = torch.arange(min(len(q.weight), LEAST_COLUMNS * q.weight.shape[1]))
    kept = torch.cat([least, *(sample.target for sample in samples)]).unique()
    rows = kept.to(q.weight.device)
    weight, bias = q.weight[rows], None if q.bias is None else q.bias[rows]
    found: OneSoftmax
    if isinstance(q, LinearHead):
        found = LinearHead(weight, bias, scale=q.scale, softcap=q.softcap)
    else:
        found = softmax_of(weight, bias, q.hidden_size, q.latent, q.activation)
        found.logit_map = q.logit_map
    return found, Samples(*(_scaled(q, found, kept, sample) for sample in samples))


def _scaled(before: OneSoftmax, q: OneSoftmax, kept: Tensor, sample: Sample) -> Sample:
    column = torch.searchsorted(kept, sample.target)  # (N,)
    log_p = log_prob_of(before, sample.hidden, sample.target)  # (N,)
    log_scale = _ratio(log_p, log_prob_of(q, sample.hidden, column))
    if sample.log_scale is not None:
        log_scale = log_scale + sample.log_scale
    return sample._replace(target=column, log_scale=log_scale)


@torch.no_grad()
def log_prob_of(head: OneSoftmax, hidden: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities (N,) of targets, on the CPU."""
    device, found = head.weight.device, []
    for h, t in zip(hidden.split(SCORED), target.split(SCORED), strict=True):
        log_p = head.log_prob(h.to(device))  # (n, V)
        found.append(log_p.gather(1, t.to(device)[:, None])[:, 0].cpu())
    return torch.cat(found)


@torch.no_grad()
def _windows(
    predictor: Predictor,
    model: AuditedModel,
    tokens: Tokens,
    most: int,
    on_progress: OnProgress | None,
) -> Iterator[Part]:
    """Contexts all over a text, of a head that needs their hidden states only."""
    contexts = read_contexts(
        predictor.hidden_states, tokens, most, window=model.window, on_progress=on_progress
    )
    follow = torch.tensor([int(tokens[position + 1]) for position in contexts.positions])
    device = torch.device(model.device)
    for hidden, target in zip(contexts.hidden.split(SCORED), follow.split(SCORED), strict=True):
        hidden, target = hidden[:, None].to(device), target[:, None].to(device)
        yield Part(hidden, predictor.head.features(hidden), target)


@torch.no_grad()
def _streams(
    predictor: Predictor,
    model: AuditedModel,
    tokens: Tokens,
    most: int,
    on_progress: OnProgress | None,
) -> Iterator[Part]:
    """Contexts of streams with carried state, that begin all over a text."""
    size = len(tokens) // NUM_STREAMS
    length = min(size, most // NUM_STREAMS + 1)
    starts = range(0, NUM_STREAMS * size, size)
    streams = [np.asarray(tokens[start : start + length], dtype=np.int64) for start in starts]
    data = torch.from_numpy(np.stack(streams, 1))  # (M, B)
    state = predictor.initial_state(NUM_STREAMS)
    for start in range(0, length - 1, STREAM_WINDOW):
        if on_progress is not None:
            on_progress(start / length, "contexts")
        target = data[start + 1 : start + 1 + STREAM_WINDOW]  # (T, B)
        hidden, past, state = predictor.read(data[start : start + len(target)], state)
        features = predictor.head.features(hidden, **past)
        yield Part(hidden, features, target.to(hidden.device))
