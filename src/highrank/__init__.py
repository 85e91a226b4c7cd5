"""highrank: output layers of language models beyond one softmax.

The public names are loaded when they are first used: `import highrank` itself is instant, and the
command can prepare the process before torch is there (see `__main__`). Where transformers is, or
later gets, imported, its Auto classes are told of the models of this package.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highrank import presets
    from highrank.evaluation.check import check
    from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
    from highrank.heads.divergence import head_kl
    from highrank.integrations.huggingface import load_huggingface, register
    from highrank.integrations.huggingface.upgrade import upgrade
    from highrank.ops.linear_cross_entropy import linear_cross_entropy
    from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
    from highrank.run.loading import load

__version__ = "0.1.0"

__all__ = [
    "MixtureOfContexts",
    "MixtureOfSoftmaxes",
    "Softmax",
    "check",
    "head_kl",
    "linear_cross_entropy",
    "load",
    "load_huggingface",
    "mixture_cross_entropy",
    "presets",
    "register",
    "upgrade",
]

_MODULES = {
    "MixtureOfContexts": "highrank.heads",
    "MixtureOfSoftmaxes": "highrank.heads",
    "Softmax": "highrank.heads",
    "check": "highrank.evaluation.check",
    "head_kl": "highrank.heads.divergence",
    "linear_cross_entropy": "highrank.ops.linear_cross_entropy",
    "load": "highrank.run.loading",
    "load_huggingface": "highrank.integrations.huggingface",
    "mixture_cross_entropy": "highrank.ops.mixture_cross_entropy",
    "register": "highrank.integrations.huggingface",
    "upgrade": "highrank.integrations.huggingface.upgrade",
}


_PACKAGES = ("build", "data", "heads", "presets", "run")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"highrank.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'highrank' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _register() -> None:
    # Only one that is older than the extra's, or half imported, cannot be told.
    with suppress(ImportError, ValueError):
        __getattr__("register")()


import_module("highrank.integrations.huggingface.late").when_loaded(_register)
