"""Variants: a head with its K and d, and the network that goes with it.

`--heads` takes KIND[:K][+COMPONENT …][,option=value …]. Variants of one network and one d have the
same E and, into the output layer, the same D; with equal parameters the rest of the network makes
up for the size of the head.
D hidden size, E embedding size, K components, V vocabulary.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

from highrank.build import HEAD_GIVEN
from highrank.config import RunConfig, with_options
from highrank.heads import HEADS, head_arguments, head_class
from highrank.run.configuration import config_from_json
from highrank.signatures import check_ranges, checked_options, import_kind
from highrank.studies.compare.networks import LSTM, Sizer, hidden_sizes, layers_text, network_title

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
        return hidden_sizes(self.config)[-1]

    @property
    def layers(self) -> str:
        """Sizes of the layers, as text."""
        return layers_text(self.config)

    @property
    def family(self) -> tuple[str, int]:
        """The network and d: those of one control."""
        return self.config.model.kind, self.embedding_size

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
    models: Sequence[str] = (LSTM,),
) -> tuple[Variant, ...]:
    """For each network the control of each d, then its heads; the same head is there once.

    Args:
        base: an LSTM and how it trains; its head's dropout holds for all, the range of its
            embeddings for their size.
        is_equal: whether all have about as many parameters as the control of the largest d.
        models: keys of the networks.
    """
    if is_equal and len(hidden_sizes(base)) < 2:
        raise ValueError("hidden-sizes must be at least two for equal parameters, got one")

    def control(config: RunConfig) -> RunConfig:
        return _head_config(config, parse_spec("softmax"), 1, max(embedding_sizes))

    sizer = Sizer(vocab_size, token_counts)
    wanted = sizer.count(control(base))
    networks = [sizer.on_network(base, kind, control) for kind in models]
    found: dict[str, Variant] = {}
    for network, size in product(networks, embedding_sizes):
        for spec, count, config, role in _configs(network, specs, components, size):
            if is_equal and role is not Role.OTHER_SIZE:
                config = sizer.resize(config, wanted, spec.text)
            name, label = _name(spec, count, size), _label(spec, count, role)
            if network.model.kind != LSTM:
                name = f"{network.model.kind}-{name}"
            if len(networks) > 1:
                label = f"{network_title(network)}: {label}"
            found.setdefault(
                name,
                Variant(
                    name=name,
                    label=label,
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
            # D of the other networks is that of all layers: it cannot be d alone.
            if base.model.kind != LSTM:
                continue
            sizes = (*hidden_sizes(control)[:-1], size)
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
        # Over a context of its own, as each softmax of a mixture.
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
