"""Runs with a name, one function per table row, and the perplexities that papers print for them."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from highrank.config import RunConfig
from highrank.heads import COMPOSED, HEADS
from highrank.presets import backbones, one_billion, papers, small

# Heads whose small run on Penn Treebank has a network or options of its own.
TUNED = ("softmax", "mos")
KINDS = (*HEADS, *COMPOSED, small.RECOMMENDED)
PRESETS: dict[str, Callable[[], RunConfig]] = {
    "small": small.small,
    "small-mos": small.small_mos,
    "small-softmax": small.small_softmax,
    "small-transformer": backbones.small_transformer,
    "small-gated-cnn": backbones.small_gated_cnn,
    "ptb-small-softmax": small.ptb_small_softmax,
    "ptb-small-mos": small.ptb_small_mos,
    **{f"ptb-small-{kind}": small.ptb_small(kind) for kind in KINDS if kind not in TUNED},
    "ptb-softmax": papers.ptb_softmax,
    "ptb-moc": papers.ptb_moc,
    "ptb-mos": papers.ptb_mos,
    "ptb-doc": papers.ptb_doc,
    "ptb-transformer-softmax": backbones.ptb_transformer_softmax,
    "ptb-transformer-mos": backbones.ptb_transformer_mos,
    "wt2-softmax": papers.wt2_softmax,
    "wt2-moc": papers.wt2_moc,
    "wt2-mos": papers.wt2_mos,
    "wt2-doc": papers.wt2_doc,
    "wt103-gcnn": backbones.wt103_gcnn,
    "text8-softmax": papers.text8_softmax,
    "text8-mos": papers.text8_mos,
    "lm1b-softmax": one_billion.lm1b_softmax,
    "lm1b-mos": one_billion.lm1b_mos,
    "lm1b-adaptive-softmax": one_billion.lm1b_adaptive_softmax,
    "lm1b-adaptive-mos": one_billion.lm1b_adaptive_mos,
    "lm1b-adaptive-softmax+pointer+ngram": one_billion.lm1b_components,
}


def get(name: str) -> RunConfig:
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]()


class Published(NamedTuple):
    """A row of a table."""

    source: str
    method: str
    """static, dynamic or cache."""
    is_finetuned: bool
    valid: float
    test: float


# Yang et al. (2018), https://arxiv.org/abs/1711.03953
YANG_PTB, YANG_WT2, YANG_MOC = "Yang, table 1", "Yang, table 2", "Yang, table 5"
YANG_1B = "Yang, table 3"
# Takase et al. (2018), https://arxiv.org/abs/1808.10143
TAKASE = "Takase"
# Mean of three logs in ischlag/Fast-Weight-Memory-public, language-modelling/transformer_xl_ptb.
DAI = "Dai's recipe, three logs, test at temperature 1.08"

PUBLISHED: dict[str, tuple[Published, ...]] = {
    "ptb-mos": (
        Published(YANG_PTB, "static", False, 58.08, 55.97),
        Published(YANG_PTB, "static", True, 56.54, 54.44),
        Published(YANG_PTB, "dynamic", True, 48.33, 47.69),
    ),
    "ptb-moc": (Published(YANG_MOC, "static", False, 59.82, 57.55),),
    "ptb-transformer-softmax": (Published(DAI, "static", True, 59.75, 55.3),),
    "ptb-doc": (Published(TAKASE, "static", True, 54.12, 52.38),),
    "wt2-doc": (Published(TAKASE, "static", True, 60.29, 58.03),),
    # Yang et al. quote these of Merity et al., and of Krause et al. for dynamic evaluation.
    "ptb-softmax": (
        Published(YANG_PTB, "static", False, 60.7, 58.8),
        Published(YANG_PTB, "static", True, 60.0, 57.3),
        Published(YANG_PTB, "cache", True, 53.9, 52.8),
        Published(YANG_PTB, "dynamic", True, 51.6, 51.1),
    ),
    "wt2-mos": (
        Published(YANG_WT2, "static", False, 66.01, 63.33),
        Published(YANG_WT2, "static", True, 63.88, 61.45),
        Published(YANG_WT2, "dynamic", True, 42.41, 40.68),
    ),
    "lm1b-mos": (Published(YANG_1B, "static", False, 38.01, 37.10),),
    "wt2-moc": (Published(YANG_MOC, "static", False, 68.76, 65.98),),
    "wt2-softmax": (
        Published(YANG_WT2, "static", False, 69.1, 66.0),
        Published(YANG_WT2, "static", True, 68.6, 65.8),
        Published(YANG_WT2, "cache", True, 53.8, 52.0),
        Published(YANG_WT2, "dynamic", True, 46.4, 44.3),
    ),
}


def published(config: RunConfig, corpus: str) -> tuple[Published, ...]:
    """The rows of the preset that the configuration is, whatever its seed; none if it is none.

    Args:
        corpus: the name of the prepared corpus, which the configuration may give as a path.
    """
    wanted = _normalised(replace(config, corpus=corpus))
    found = (rows for name, rows in PUBLISHED.items() if _normalised(get(name)) == wanted)
    return next(found, ())


def _normalised(config: RunConfig) -> RunConfig:
    """With constants for the fields that a published run leaves free."""
    return replace(config, seed=0, precision="float32", valid_batch_size=1)
