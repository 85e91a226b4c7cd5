"""Output layers: from a network's hidden states to the probabilities of the next token.

`HEADS` is the only list of them, `COMPONENTS` that of what may stand beside one: what builds,
documents or audits heads reads them. A class is loaded when it is used; reading the lists loads
nothing.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from highrank.signatures import arguments_of, load_class

if TYPE_CHECKING:
    from highrank.heads.adaptive_mos import AdaptiveMixtureOfSoftmaxes as AdaptiveMixtureOfSoftmaxes
    from highrank.heads.adaptive_softmax import AdaptiveSoftmax as AdaptiveSoftmax
    from highrank.heads.bases.component import Component as Component
    from highrank.heads.bases.head import Head as Head
    from highrank.heads.bases.mixture import Mixture as Mixture
    from highrank.heads.bases.mixture import MixtureHead as MixtureHead
    from highrank.heads.bases.output import HeadOutput as HeadOutput
    from highrank.heads.components.constant import Constant as Constant
    from highrank.heads.components.ngram import NGramComponent as NGramComponent
    from highrank.heads.components.pointer import Pointer as Pointer
    from highrank.heads.composed import Composed as Composed
    from highrank.heads.doc import DirectOutputConnection as DirectOutputConnection
    from highrank.heads.low_rank_mos import LowRankMixture as LowRankMixture
    from highrank.heads.mfs import MultiFacetSoftmax as MultiFacetSoftmax
    from highrank.heads.mixtape import Mixtape as Mixtape
    from highrank.heads.moc import MixtureOfContexts as MixtureOfContexts
    from highrank.heads.mos import MixtureOfSoftmaxes as MixtureOfSoftmaxes
    from highrank.heads.multi_sense import MultiSenseSoftmax as MultiSenseSoftmax
    from highrank.heads.partition import PartitionedSoftmax as PartitionedSoftmax
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
    "low-rank-mos": "highrank.heads.low_rank_mos:LowRankMixture",
    "doc": "highrank.heads.doc:DirectOutputConnection",
    "mixtape": "highrank.heads.mixtape:Mixtape",
    "partition": "highrank.heads.partition:PartitionedSoftmax",
    "mfs": "highrank.heads.mfs:MultiFacetSoftmax",
    "pointwise": "highrank.heads.pointwise:Pointwise",
    "adaptive-softmax": "highrank.heads.adaptive_softmax:AdaptiveSoftmax",
    "adaptive-mos": "highrank.heads.adaptive_mos:AdaptiveMixtureOfSoftmaxes",
}
# What may stand beside a head, after a plus: adaptive-softmax+pointer.
COMPONENTS: dict[str, str] = {
    "constant": "highrank.heads.components.constant:Constant",
    "pointer": "highrank.heads.components.pointer:Pointer",
    "ngram": "highrank.heads.components.ngram:NGramComponent",
}
# Heads with components that have a preset and a row in tables, as each head has.
COMPOSED = ("mos+constant", "mos+pointer", "adaptive-softmax+pointer")
_BASES = (
    "highrank.heads.bases.component:Component",
    "highrank.heads.bases.head:Head",
    "highrank.heads.bases.mixture:Mixture",
    "highrank.heads.bases.mixture:MixtureHead",
    "highrank.heads.bases.output:HeadOutput",
    "highrank.heads.composed:Composed",
)


def head_class(kind: str) -> type["Head"]:
    """The class of a kind: a key of `HEADS`, or module:Class, and +component for each further one.

    Nothing but the package itself is imported: a file may have named the kind.
    """
    from highrank.heads.bases.head import Head

    name, *further = kind.split("+")
    base: Any = load_class(HEADS, name, "head.kind")
    if not issubclass(base, Head) or len(set(further)) < len(further):
        raise ValueError(f"head.kind must be a head, and each component once, got {kind!r}")
    if not further:
        return cast("type[Head]", base)
    from highrank.heads.composed import composed_class

    parts = [load_class(COMPONENTS, one, "components of head.kind") for one in further]
    return composed_class("+".join((name, *further)), base, tuple(parts))


def head_arguments(kind: str) -> Mapping[str, inspect.Parameter]:
    """The arguments of a head's constructor, by name, those of its bases included."""
    return arguments_of(head_class(kind))


def _paths() -> dict[str, str]:
    """module:Class of each class, by its name."""
    return {path.split(":")[1]: path for path in (*_BASES, *HEADS.values(), *COMPONENTS.values())}


def __getattr__(name: str) -> Any:
    if name not in (paths := _paths()):
        raise AttributeError(f"module 'highrank.heads' has no attribute {name!r}")
    return load_class(paths, name, "name")


def __dir__() -> list[str]:
    return sorted({*globals(), *_paths()})
