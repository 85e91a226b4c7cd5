"""Output layers: from a network's hidden states to the probabilities of the next token.

`HEADS` is the only list of them: what builds, documents or audits heads reads it. A class is
loaded when it is used; reading the list loads nothing.
"""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from highrank.signatures import arguments_of, load_class

if TYPE_CHECKING:
    from highrank.heads.adaptive.mos import AdaptiveMixtureOfSoftmaxes as AdaptiveMixtureOfSoftmaxes
    from highrank.heads.adaptive.pointer import AdaptivePointer as AdaptivePointer
    from highrank.heads.adaptive.softmax import AdaptiveSoftmax as AdaptiveSoftmax
    from highrank.heads.bases.head import Head as Head
    from highrank.heads.bases.mixture import Mixture as Mixture
    from highrank.heads.bases.mixture import MixtureHead as MixtureHead
    from highrank.heads.bases.output import HeadOutput as HeadOutput
    from highrank.heads.constant import ConstantComponents as ConstantComponents
    from highrank.heads.doc import DirectOutputConnection as DirectOutputConnection
    from highrank.heads.low_rank_mos import LowRankMixture as LowRankMixture
    from highrank.heads.mfs import MultiFacetSoftmax as MultiFacetSoftmax
    from highrank.heads.mixtape import Mixtape as Mixtape
    from highrank.heads.moc import MixtureOfContexts as MixtureOfContexts
    from highrank.heads.mos import MixtureOfSoftmaxes as MixtureOfSoftmaxes
    from highrank.heads.multi_sense import MultiSenseSoftmax as MultiSenseSoftmax
    from highrank.heads.partition import PartitionedSoftmax as PartitionedSoftmax
    from highrank.heads.pointer import Pointer as Pointer
    from highrank.heads.pointwise import Pointwise as Pointwise
    from highrank.heads.softmax import Softmax as Softmax
    from highrank.heads.sparse_mos import SparseMixtureOfSoftmaxes as SparseMixtureOfSoftmaxes

# Keys are values of --head.kind; a head's other options are its constructor's arguments.
HEADS: dict[str, str] = {
    "softmax": "highrank.heads.softmax:Softmax",
    "moc": "highrank.heads.moc:MixtureOfContexts",
    "mos": "highrank.heads.mos:MixtureOfSoftmaxes",
    "sparse-mos": "highrank.heads.sparse_mos:SparseMixtureOfSoftmaxes",
    "multi-sense": "highrank.heads.multi_sense:MultiSenseSoftmax",
    "constant": "highrank.heads.constant:ConstantComponents",
    "pointer": "highrank.heads.pointer:Pointer",
    "low-rank-mos": "highrank.heads.low_rank_mos:LowRankMixture",
    "doc": "highrank.heads.doc:DirectOutputConnection",
    "mixtape": "highrank.heads.mixtape:Mixtape",
    "partition": "highrank.heads.partition:PartitionedSoftmax",
    "mfs": "highrank.heads.mfs:MultiFacetSoftmax",
    "pointwise": "highrank.heads.pointwise:Pointwise",
    "adaptive-softmax": "highrank.heads.adaptive.softmax:AdaptiveSoftmax",
    "adaptive-mos": "highrank.heads.adaptive.mos:AdaptiveMixtureOfSoftmaxes",
    "adaptive-pointer": "highrank.heads.adaptive.pointer:AdaptivePointer",
}
_BASES = {
    "Head": "highrank.heads.bases.head",
    "HeadOutput": "highrank.heads.bases.output",
    "Mixture": "highrank.heads.bases.mixture",
    "MixtureHead": "highrank.heads.bases.mixture",
}


def head_class(kind: str) -> type["Head"]:
    """The class of a key of `HEADS`."""
    return load_class(HEADS, kind, "head.kind")


def head_arguments(kind: str) -> Mapping[str, inspect.Parameter]:
    """The arguments of a head's constructor, by name, those of its bases included."""
    return arguments_of(head_class(kind))


def _modules() -> dict[str, str]:
    """The module of each class."""
    return {path.split(":")[1]: path.split(":")[0] for path in HEADS.values()} | _BASES


def __getattr__(name: str) -> Any:
    modules = _modules()
    if name not in modules:
        raise AttributeError(f"module 'highrank.heads' has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
