"""Networks of a comparison: their sizes, and the part that makes up for the size of a head.

The LSTM has --hidden-sizes. Other networks have about as many parameters, in the proportions of the
small presets. With equal parameters every head has sizes of its own: of an LSTM the layers before
the last change, of the others the inside of the layers; D does not.
D hidden size.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from highrank.build import build_model
from highrank.config import RunConfig, with_options
from highrank.models import backbone_class
from highrank.presets.backbones import SMALL_SIZES, on_network

LSTM = "awd-lstm"
# The option that gives the size inside a layer.
INNER = {"transformer": "feedforward_size", "gated-cnn": "bottleneck_size"}
# Of the number of parameters; one more inside all layers is a larger step than one more in one.
TOLERANCE = {LSTM: 0.01, "transformer": 0.02, "gated-cnn": 0.02}
SMALLEST_LAYER = 4
# D of networks other than LSTMs is a multiple of this.
STEP = 16
LARGEST = 1 << 16


def hidden_sizes(config: RunConfig) -> tuple[int, ...]:
    """Sizes of the layers; the last is D."""
    options = config.model.options
    if config.model.kind == LSTM:
        return tuple(options["hidden_sizes"])
    depth: int = options.get("num_layers") or options["num_blocks"]
    return (options["hidden_size"],) * depth


def layers_text(config: RunConfig) -> str:
    """320-256 of an LSTM; 3 × 160 (inner 427) of the others."""
    sizes = hidden_sizes(config)
    if config.model.kind == LSTM:
        return "-".join(map(str, sizes))
    inner = config.model.options[INNER[config.model.kind]]
    return f"{len(sizes)} × {sizes[0]} (inner {inner})"


def network_title(config: RunConfig) -> str:
    return str(backbone_class(config.model.kind).title)


def change_with(config: RunConfig, size: int) -> RunConfig:
    """The configuration with this size of the layers before the last, or inside the layers."""
    if config.model.kind == LSTM:
        *before, last = hidden_sizes(config)
        model = with_options(config.model, hidden_sizes=(*(size for _ in before), last))
    else:
        model = with_options(config.model, **{INNER[config.model.kind]: size})
    return replace(config, model=model)


class Sizer:
    """Counts parameters on the meta device, and finds sizes that give a wanted number."""

    def __init__(self, vocab_size: int, token_counts: Sequence[int]) -> None:
        self.vocab_size, self.token_counts = vocab_size, token_counts

    def count(self, config: RunConfig) -> int:
        with torch.device("meta"):
            model = build_model(config, self.vocab_size, token_counts=self.token_counts)
        return sum(parameter.numel() for parameter in model.parameters())

    def resize(self, config: RunConfig, wanted: int, name: str) -> RunConfig:
        """Change a size other than D for so many parameters, within `TOLERANCE`."""
        tolerance = TOLERANCE[config.model.kind]
        found = self._nearest(lambda size: change_with(config, size), wanted, SMALLEST_LAYER, 1)
        if abs(self.count(found) - wanted) > tolerance * wanted:
            raise ValueError(
                f"{name} must fit into {wanted:,} parameters within {100 * tolerance:g} %, got "
                f"{self.count(found):,}: change --hidden-sizes, or leave parameters out of --equal"
            )
        return found

    def on_network(
        self, base: RunConfig, kind: str, control: Callable[[RunConfig], RunConfig]
    ) -> RunConfig:
        """The configuration on another network, of about as many parameters.

        Args:
            base: has an LSTM.
            control: a configuration with the head and the embeddings of the control.
        """
        if kind == LSTM:
            return base
        config, small = on_network(base, kind), SMALL_SIZES[kind]

        def of_width(size: int) -> RunConfig:
            inner = max(SMALLEST_LAYER, round(size * small[INNER[kind]] / small["hidden_size"]))
            options = {"hidden_size": size, INNER[kind]: inner}
            return control(replace(config, model=with_options(config.model, **options)))

        model = self._nearest(of_width, self.count(control(base)), STEP, STEP).model
        options = {name: model.options[name] for name in ("hidden_size", INNER[kind])}
        return replace(config, model=with_options(config.model, **options))

    def _nearest(
        self, config_of: Callable[[int], RunConfig], wanted: int, smallest: int, step: int
    ) -> RunConfig:
        """The configuration of the size with which it has nearly so many parameters."""
        sizes = range(smallest, LARGEST, step)
        index = bisect_left(sizes, wanted, key=lambda size: self.count(config_of(size)))
        near = [config_of(sizes[max(0, min(i, len(sizes) - 1))]) for i in (index - 1, index)]
        return min(near, key=lambda config: abs(self.count(config) - wanted))
