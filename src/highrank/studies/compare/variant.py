"""Variants: a head with its K and d, and the network that goes with it.

`--heads` takes KIND[:K][+COMPONENT …][,option=value …]. Variants of one d have the same E and,
into the output layer, the same D; with equal parameters the layers before make up for the size of
the head.
D hidden size, E embedding size, K components, V vocabulary.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from highrank.build import HEAD_GIVEN, build_model
from highrank.config import RunConfig, with_options
from highrank.heads import HEADS, head_arguments, head_class
from highrank.run.configuration import config_from_json
from highrank.signatures import check_ranges, checked_options, import_kind

# Names of --heads that are no kind of head.
TIED, UNTIED, REPEAT = "tied-softmax", "untied-softmax", "repeat"
OWN_NAMES = (TIED, UNTIED, REPEAT)
# Dropout of the contexts of an untied softmax. In recommenders the two together were as good as a
# mixture of softmaxes (https://arxiv.org/abs/2110.05409).
OUTPUT_DROPOUT = 0.2
# Kinds of which the mixture of one component is the control.
SAME_AS_CONTROL = ("softmax", "mos", "moc")
# One softmax, whose log-probabilities have a bounded rank, and nothing else.
SINGLE = ("softmax", "adaptive-softmax")
TOLERANCE = 0.01
SMALLEST_LAYER = 4
# Where embeddings of AWD-LSTM start if nothing else is said.
PAPERS_RANGE = 0.1
# A repeated control has other seeds.
SEED_OF_REPEAT = 1_000


class Role(StrEnum):
    CONTROL = "control"
    HEAD = "head"
    OTHER_CONTEXT = "other context"
    """A head whose context is not that of the others."""
    OTHER_SIZE = "other size"
    """A baseline with an embedding more than the others: never of equal parameters."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    name: str
    """Unique; its runs' folders have it."""
    label: str
    spec: str
    """As `--heads` takes it."""
    role: Role
    num_components: int
    """K."""
    embedding_size: int
    """E, d of the paper."""
    config: RunConfig
    """With seed 0."""
    num_parameters: int

    @property
    def is_control(self) -> bool:
        return self.role is Role.CONTROL

    @property
    def is_single(self) -> bool:
        """Whether it is one softmax, with the context of the others."""
        return self.config.head.kind in SINGLE and self.role is not Role.OTHER_CONTEXT

    @property
    def is_mixture(self) -> bool:
        """Whether it is K softmaxes and nothing else: its rank may exceed that of one."""
        kind = self.config.head.kind
        return self.num_components > 1 and kind != "moc" and "+" not in kind

    @property
    def is_adaptive(self) -> bool:
        return self.config.head.kind.startswith("adaptive")

    @property
    def context_size(self) -> int:
        """D."""
        return self.hidden_sizes[-1]

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        return _hidden_sizes(self.config)

    def run_config(self, seed: int) -> RunConfig:
        shift = SEED_OF_REPEAT if self.spec == REPEAT else 0
        return replace(self.config, seed=seed + shift)


def variant_from_json(values: Mapping[str, Any]) -> Variant:
    config, role = config_from_json(values["config"]), Role(values["role"])
    return Variant(**{**values, "config": config, "role": role})


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One of `--heads`, parsed."""

    text: str
    kind: str
    num_components: int | None
    """None takes those of `--components`."""
    options: dict[str, Any]


def parse_spec(text: str) -> Spec:
    """Raise ValueError unless it is KIND[:K][+COMPONENT …][,option=value …] of a known head."""
    first, *given = text.split(",")
    kind, count = _split_count(first)
    if kind not in OWN_NAMES:
        try:
            import_kind(kind)
            head_class(kind)
        except ValueError as error:
            names = ", ".join(OWN_NAMES)
            raise ValueError(f"heads must be {names} or kinds: {error}") from None
    if count and not has_components(kind):
        raise ValueError(f"{kind} must come without a number of components, got {text!r}")
    options = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign:
            raise ValueError(f"options of heads must be name=value, got {one!r}")
        options[name.replace("-", "_")] = _parse_value(value)
    if kind not in OWN_NAMES:
        checked_options(head_class(kind), options, HEAD_GIVEN, "head")
    elif options:
        raise ValueError(f"{kind} must come without options, got {text!r}")
    return Spec(text=text, kind=kind, num_components=int(count) if count else None, options=options)


def _split_count(text: str) -> tuple[str, str]:
    """The kind and K, where there is one: mos:5+pointer is mos+pointer and 5."""
    name, plus, further = text.partition("+")
    base, colon, count = name.rpartition(":")
    if not colon or (not count.isdigit() and base not in HEADS):
        return text, ""
    if not (count.isdigit() and int(count) > 0):
        raise ValueError(f"heads must be KIND or KIND:K with a whole number K, got {text!r}")
    check_ranges(int(count), "components")
    return f"{base}{plus}{further}", count


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def has_components(kind: str) -> bool:
    return kind not in OWN_NAMES and "num_components" in head_arguments(kind)


def make_variants(
    base: RunConfig,
    specs: Sequence[str],
    components: Sequence[int],
    embedding_sizes: Sequence[int],
    vocab_size: int,
    token_counts: Sequence[int],
    *,
    is_equal: bool,
) -> tuple[Variant, ...]:
    """The control of each d, then its heads; the same head is there once.

    Args:
        base: the network and how it trains; its head's dropout holds for all, the range of its
            embeddings for their size.
        is_equal: whether all have about as many parameters as the control of the largest d.
    """
    sizer = Sizer(vocab_size, token_counts)
    wanted = None
    if is_equal:
        if len(_hidden_sizes(base)) < 2:
            raise ValueError("hidden-sizes must be at least two for equal parameters, got one")
        wanted = sizer.count(_head_config(base, parse_spec("softmax"), 1, max(embedding_sizes)))
    found: dict[str, Variant] = {}
    for size in embedding_sizes:
        for spec, count, config, role in _configs(base, specs, components, size):
            if wanted is not None and role is not Role.OTHER_SIZE:
                config = sizer.resize(config, wanted, spec.text)
            name = _name(spec, count, size)
            found.setdefault(
                name,
                Variant(
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
) -> Iterator[tuple[Spec, int, RunConfig, Role]]:
    """Each head of one d, the control first: a mixture with one component."""
    softmax = parse_spec("softmax")
    control = _head_config(base, softmax, 1, size)
    yield softmax, 1, control, Role.CONTROL
    for spec in map(parse_spec, specs):
        if spec.kind == REPEAT:
            yield spec, 1, control, Role.HEAD
        elif spec.kind == TIED:
            sizes = (*_hidden_sizes(control)[:-1], size)
            model = with_options(control.model, hidden_sizes=sizes)
            head = replace(control.head, options={})
            yield spec, 1, replace(control, model=model, head=head), Role.OTHER_CONTEXT
        elif spec.kind == UNTIED:
            head = replace(control.head, dropout=OUTPUT_DROPOUT)
            model = replace(control.model, tied=False)
            yield spec, 1, replace(control, model=model, head=head), Role.OTHER_SIZE
        else:
            for count in _counts(spec, components):
                if count > 1 or spec.kind not in SAME_AS_CONTROL or spec.options:
                    yield spec, count, _head_config(base, spec, count, size), Role.HEAD


def _counts(spec: Spec, components: Sequence[int]) -> Sequence[int]:
    """The K of a head; a head with components of another kind has one softmax by default."""
    if not has_components(spec.kind):
        return (1,)
    if spec.num_components is not None:
        return (spec.num_components,)
    return (1,) if "+" in spec.kind else components


def _head_config(base: RunConfig, spec: Spec, count: int, size: int) -> RunConfig:
    options = dict(spec.options)
    if spec.kind.split("+")[0] == "softmax":
        # Over tanh(Linear(hidden)), as each softmax of a mixture.
        options.setdefault("embedding_size", size)
    head = replace(base.head, kind=spec.kind, num_components=count, options=options)
    # Logits of the same size at the start, whatever d is: with few numbers of ±0.5 each, a tied
    # model does not get beyond the frequencies of the tokens for a long time.
    scale = math.sqrt(base.model.embedding_size / size)
    start = base.model.options.get("embedding_range", PAPERS_RANGE) * scale
    model = with_options(replace(base.model, embedding_size=size), embedding_range=start)
    return replace(base, model=model, head=head)


def _name(spec: Spec, count: int, size: int) -> str:
    options = "".join(f"-{name}={value}" for name, value in sorted(spec.options.items()))
    number = f"-k{count}" if has_components(spec.kind) else ""
    return f"{spec.kind}{number}-d{size}{options}".replace("/", "_").replace(" ", "")


def _label(spec: Spec, count: int, role: Role) -> str:
    if role is Role.CONTROL:
        return "control, K = 1"
    if spec.kind == REPEAT:
        return "control, other seeds"
    if spec.kind == UNTIED:
        return f"Untied softmax, dropout {OUTPUT_DROPOUT}"
    text = "Tied softmax, D = d" if spec.kind == TIED else head_class(spec.kind).title
    if has_components(spec.kind) and (count > 1 or spec.num_components or "+" in spec.kind):
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

    def resize(self, config: RunConfig, wanted: int, name: str) -> RunConfig:
        """Size the layers before the last for so many parameters, within 1 %."""
        # Each matrix has at most two sides of this size: the count is a polynomial of degree 2.
        sizes = (8, 64, 512)
        counts = [self.count(_with_layers(config, size)) - wanted for size in sizes]
        root = max(np.roots(np.polyfit(sizes, counts, 2)).real, default=0.0)
        near = {max(SMALLEST_LAYER, round(root) + step) for step in (-1, 0, 1)}
        found = [_with_layers(config, size) for size in near]
        best = min(found, key=lambda config: abs(self.count(config) - wanted))
        if abs(self.count(best) - wanted) > TOLERANCE * wanted:
            raise ValueError(
                f"{name} must fit into {wanted:,} parameters within 1 %, got "
                f"{self.count(best):,}: change --hidden-sizes, or leave parameters out of --equal"
            )
        return best


def _with_layers(config: RunConfig, size: int) -> RunConfig:
    sizes = _hidden_sizes(config)
    sizes = (*(size for _ in sizes[:-1]), sizes[-1])
    return replace(config, model=with_options(config.model, hidden_sizes=sizes))


def _hidden_sizes(config: RunConfig) -> tuple[int, ...]:
    return tuple(config.model.options["hidden_sizes"])
