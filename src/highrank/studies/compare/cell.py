"""What is compared: a head, K and d as a cell, with the network that goes with it.

`--heads` takes KIND[:K][,option=value …]. Cells of one d have the same E and, into the output
layer, the same D; with equal parameters the layers before make up for the size of the head.
D hidden size, E embedding size, K components, V vocabulary.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from highrank.build import build_model, checked_options
from highrank.config import HeadConfig, RunConfig
from highrank.heads import HEADS, head_arguments, head_class
from highrank.heads.bases.extra import ExtendedMixture

# Names of --heads that are no kind of head.
TIED, REPEAT = "tied-softmax", "repeat"
# What a mixture of one component is.
SAME_AS_CONTROL = ("softmax", "mos", "moc")
# One softmax, whose log-probabilities have a bounded rank, and nothing else.
SINGLE = ("softmax", "adaptive-softmax")
TOLERANCE = 0.01
SMALLEST_LAYER = 4
# A repeated control has other seeds.
SEED_OF_REPEAT = 1_000
NAMES = {
    "softmax": "Softmax",
    "moc": "MoC",
    "mos": "MoS",
    "doc": "DOC",
    "mfs": "MFS",
    "adaptive-mos": "Adaptive MoS",
    "low-rank-mos": "Low-rank MoS",
    "sparse-mos": "Sparse MoS",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    name: str
    """Unique; its runs' folders have it."""
    label: str
    spec: str
    """As `--heads` takes it."""
    role: str
    """"control", "head", or "other context" for a head whose context is not that of the others."""
    num_components: int
    """K."""
    embedding_size: int
    """E, d of the paper."""
    config: RunConfig
    """With seed 0."""
    num_parameters: int

    @property
    def is_control(self) -> bool:
        return self.role == "control"

    @property
    def is_single(self) -> bool:
        """Whether it is one softmax, with the context of the others."""
        return self.config.head.kind in SINGLE and self.role != "other context"

    @property
    def is_mixture(self) -> bool:
        """Whether it is K softmaxes and nothing else: its rank may exceed that of one."""
        kind = self.config.head.kind
        is_extended = issubclass(head_class(kind), ExtendedMixture)
        return self.num_components > 1 and kind != "moc" and not is_extended

    @property
    def context_size(self) -> int:
        """D."""
        return self.config.model.hidden_sizes[-1]

    def run_config(self, seed: int) -> RunConfig:
        shift = SEED_OF_REPEAT if self.spec == REPEAT else 0
        return replace(self.config, seed=seed + shift)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One of `--heads`, read."""

    text: str
    kind: str
    num_components: int | None
    """None takes those of `--components`."""
    options: dict[str, Any]


def parse_spec(text: str) -> Spec:
    """Raise ValueError unless it is KIND[:K][,option=value …] of a known head."""
    first, *given = text.split(",")
    kind, _, count = first.partition(":")
    known = (*HEADS, TIED, REPEAT)
    if kind not in known:
        raise ValueError(f"heads must be among {', '.join(known)}, got {kind!r}")
    if count and not (count.isdigit() and int(count) > 0):
        raise ValueError(f"heads must be KIND or KIND:K with a whole number K, got {text!r}")
    if count and not has_components(kind):
        raise ValueError(f"{kind} must come without a number of components, got {text!r}")
    options = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign:
            raise ValueError(f"options of heads must be name=value, got {one!r}")
        options[name.replace("-", "_")] = _value(value)
    if kind in HEADS:
        checked_options(HeadConfig(kind=kind, options=options))
    elif options:
        raise ValueError(f"{kind} must come without options, got {text!r}")
    return Spec(text=text, kind=kind, num_components=int(count) if count else None, options=options)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def has_components(kind: str) -> bool:
    return kind in HEADS and "num_components" in head_arguments(kind)


def make_cells(
    base: RunConfig,
    specs: Sequence[str],
    components: Sequence[int],
    embedding_sizes: Sequence[int],
    vocab_size: int,
    token_counts: Sequence[int],
    *,
    is_equal: bool,
) -> tuple[Cell, ...]:
    """The control of each d, then its heads; the same head is there once.

    Args:
        base: the network and how it trains; its head's dropout holds for all, the range of its
            embeddings for their size.
        is_equal: whether all have about as many parameters as the control of the largest d.
    """
    sizer = Sizer(vocab_size, token_counts)
    wanted = None
    if is_equal:
        if len(base.model.hidden_sizes) < 2:
            raise ValueError("hidden-sizes must be at least two for equal parameters, got one")
        wanted = sizer.count(_control_config(base, max(embedding_sizes)))
    found: dict[str, Cell] = {}
    for size in embedding_sizes:
        for spec, count, config, role in _configs(base, specs, components, size):
            config = config if wanted is None else sizer.resized(config, wanted, spec.text)
            name = _name(spec, count, size)
            found.setdefault(
                name,
                Cell(
                    name=name,
                    label=_label(spec, count, role),
                    spec=spec.text,
                    role=role,
                    num_components=count,
                    embedding_size=size,
                    config=config,
                    num_parameters=sizer.count(config),
                ),
            )
    return tuple(found.values())


def _configs(
    base: RunConfig, specs: Sequence[str], components: Sequence[int], size: int
) -> list[tuple[Spec, int, RunConfig, str]]:
    """Each head of one d, the control first."""
    control = _control_config(base, size)
    found = [(parse_spec("softmax"), 1, control, "control")]
    for spec in map(parse_spec, specs):
        if spec.kind == REPEAT:
            found.append((spec, 1, control, "head"))
        elif spec.kind == TIED:
            sizes = (*control.model.hidden_sizes[:-1], size)
            model = replace(control.model, hidden_sizes=sizes)
            head = replace(control.head, options={})
            config = replace(control, model=model, head=head)
            found.append((spec, 1, config, "other context"))
        else:
            found += [
                (spec, count, _head_config(base, spec, count, size), "head")
                for count in _counts(spec, components)
                if not (count == 1 and spec.kind in SAME_AS_CONTROL and not spec.options)
            ]
    return found


def _counts(spec: Spec, components: Sequence[int]) -> Sequence[int]:
    """The K of a head; a head with components of another kind has one softmax unless told."""
    if not has_components(spec.kind):
        return (1,)
    if spec.num_components is not None:
        return (spec.num_components,)
    return (1,) if issubclass(head_class(spec.kind), ExtendedMixture) else components


def _control_config(base: RunConfig, size: int) -> RunConfig:
    """One softmax over tanh(Linear(hidden)): the mixture with one component."""
    spec = Spec(text="softmax", kind="softmax", num_components=1, options={})
    return _head_config(base, spec, 1, size)


def _head_config(base: RunConfig, spec: Spec, count: int, size: int) -> RunConfig:
    options = dict(spec.options)
    if spec.kind == "softmax":
        options.setdefault("embedding_size", size)
    head = replace(base.head, kind=spec.kind, num_components=count, options=options)
    # Logits of the same size at the start, whatever d is: with few numbers of ±0.5 each, a tied
    # model does not get beyond the frequencies of the tokens for a long time.
    scale = math.sqrt(base.model.embedding_size / size)
    model = replace(
        base.model, embedding_size=size, embedding_range=base.model.embedding_range * scale
    )
    return replace(base, model=model, head=head)


def _name(spec: Spec, count: int, size: int) -> str:
    options = "".join(f"-{name}={value}" for name, value in sorted(spec.options.items()))
    number = f"-k{count}" if has_components(spec.kind) else ""
    return f"{spec.kind}{number}-d{size}{options}".replace("/", "_").replace(" ", "")


def _label(spec: Spec, count: int, role: str) -> str:
    if role == "control":
        return "control, K = 1"
    if spec.kind == REPEAT:
        return "control, other seeds"
    text = NAMES.get(spec.kind, spec.kind.replace("-", " ").capitalize())
    if spec.kind == TIED:
        text = "Tied softmax, D = d"
    if has_components(spec.kind) and (count > 1 or spec.num_components is not None):
        text += f", K = {count}"
    return text + "".join(f", {name} {value}" for name, value in spec.options.items())


class Sizer:
    """Counts parameters on the meta device, and finds layers that give a wanted number."""

    def __init__(self, vocab_size: int, token_counts: Sequence[int]) -> None:
        self.vocab_size, self.token_counts = vocab_size, token_counts

    def count(self, config: RunConfig) -> int:
        with torch.device("meta"):
            model = build_model(config, self.vocab_size, token_counts=self.token_counts)
        return sum(parameter.numel() for parameter in model.parameters())

    def resized(self, config: RunConfig, wanted: int, name: str) -> RunConfig:
        """With the layers before the last as large as to have so many parameters, within 1 %."""
        # Each matrix has at most two sides of this size: the count is a polynomial of degree 2.
        sizes = (8, 64, 512)
        counts = [self.count(_with_layers(config, size)) - wanted for size in sizes]
        root = max(np.roots(np.polyfit(sizes, counts, 2)).real, default=0.0)
        near = {max(SMALLEST_LAYER, round(root) + step) for step in (-1, 0, 1)}
        best = min(
            (_with_layers(config, size) for size in near),
            key=lambda config: self._off(config, wanted),
        )
        if self._off(best, wanted) > TOLERANCE * wanted:
            raise ValueError(
                f"{name} must fit into {wanted:,} parameters within 1 %, got "
                f"{self.count(best):,}: change --hidden-sizes, or leave parameters out of --equal"
            )
        return best

    def _off(self, config: RunConfig, wanted: int) -> int:
        return abs(self.count(config) - wanted)


def _with_layers(config: RunConfig, size: int) -> RunConfig:
    sizes = config.model.hidden_sizes
    sizes = (*(size for _ in sizes[:-1]), sizes[-1])
    return replace(config, model=replace(config.model, hidden_sizes=sizes))
