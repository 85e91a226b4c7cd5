"""Runs with a name: one function per table row, each returns a complete configuration."""

from collections.abc import Callable

from highrank.config import RunConfig
from highrank.presets.penn_treebank import (
    ptb_moc,
    ptb_mos,
    ptb_small_grown,
    ptb_small_mos,
    ptb_small_softmax,
    ptb_softmax,
)
from highrank.presets.small import small, small_softmax
from highrank.presets.wikitext_2 import wt2_moc, wt2_mos, wt2_softmax

PRESETS: dict[str, Callable[[], RunConfig]] = {
    "small": small,
    "small-softmax": small_softmax,
    "ptb-small-softmax": ptb_small_softmax,
    "ptb-small-mos": ptb_small_mos,
    "ptb-small-grown": ptb_small_grown,
    "ptb-softmax": ptb_softmax,
    "ptb-moc": ptb_moc,
    "ptb-mos": ptb_mos,
    "wt2-softmax": wt2_softmax,
    "wt2-moc": wt2_moc,
    "wt2-mos": wt2_mos,
}


def get(name: str) -> RunConfig:
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]()
