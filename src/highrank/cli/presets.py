"""`highrank presets`: the runs that have a name."""

import inspect
from itertools import groupby

from rich.table import Table

from highrank.cli.console import show
from highrank.config import RunConfig
from highrank.heads import HEADS
from highrank.presets import PRESETS, TUNED
from highrank.presets.small import RECOMMENDED, ptb_small_mos
from highrank.report.formats import listed, make_table

TITLES = ("preset", "layers, head", "what it is; published perplexities")


def presets(*, json: bool = False) -> None:
    """List the presets of `highrank train`: how they differ, published numbers.

    Args:
        json: Print the complete configurations as JSON.
    """
    # Only JSON needs all of them: the heads' own numbers of components are in modules with torch.
    found = {name: make() for name, make in PRESETS.items()} if json else {}
    show(found, lambda _: _table(), json=json)


def _table() -> Table:
    """One row for each preset, and one for all heads on the small network for Penn Treebank."""
    table = make_table(
        TITLES,
        title="highrank train PRESET",
        caption="layers: embedding, then hidden sizes; 128×3: three of 128. K: softmaxes of a "
        "mixture. Networks are AWD-LSTMs unless their name says another; dropout, learning rates "
        "and lengths of training are in --json and in `highrank train PRESET --help`.",
    )
    others = [kind for kind in HEADS if kind not in TUNED]
    same = {f"ptb-small-{kind}" for kind in others}
    rows = [(name, make(), make.__doc__) for name, make in PRESETS.items() if name not in same]
    text = (
        f"The network of ptb-small-mos with another HEAD: {listed(others)}. {RECOMMENDED}: the "
        "lowest perplexity in equal time (docs/log.md)."
    )
    at = 1 + [name for name, *_ in rows].index("ptb-small-mos")
    rows.insert(at, ("ptb-small-HEAD", ptb_small_mos(), text))
    for corpus, group in groupby(rows, key=lambda row: row[1].corpus):
        table.add_row(f"on {corpus}:")
        for name, config, doc in group:
            network = _layers(config) + "\n" + ("HEAD" if doc is text else _head(config))
            table.add_row(f" {name}", network, inspect.cleandoc(doc or "").split("\n\n")[0])
        table.add_section()
    return table


def _layers(config: RunConfig) -> str:
    size, options = config.model.embedding_size, config.model.options
    if (sizes := options.get("hidden_sizes")) is not None:
        return "-".join(map(str, (size, *sizes)))
    depth = options.get("num_layers") or options.get("num_blocks")
    return f"{size}-{options['hidden_size']}×{depth}"


def _head(config: RunConfig) -> str:
    head = config.head
    return f"{head.kind}, K = {head.num_components}" if head.num_components > 1 else head.kind
