"""Language models: a backbone that reads tokens, and a head that predicts the next one.

`BACKBONES` is the only list of backbones; a class is loaded when it is used.
"""

from typing import TYPE_CHECKING, Any

from highrank.signatures import load_class

if TYPE_CHECKING:
    from highrank.models.awd_lstm import AWDLSTM
    from highrank.models.backbone import Backbone
    from highrank.models.gated_cnn import GatedCNN
    from highrank.models.language_model import LanguageModel
    from highrank.models.transformer import Transformer

__all__ = ["AWDLSTM", "BACKBONES", "Backbone", "GatedCNN", "LanguageModel", "Transformer"]

# The key is what --model.kind takes; a backbone's options are its constructor's arguments.
BACKBONES: dict[str, str] = {
    "awd-lstm": "highrank.models.awd_lstm:AWDLSTM",
    "transformer": "highrank.models.transformer:Transformer",
    "gated-cnn": "highrank.models.gated_cnn:GatedCNN",
}
_OTHERS = {
    "Backbone": "highrank.models.backbone:Backbone",
    "LanguageModel": "highrank.models.language_model:LanguageModel",
}


def backbone_class(kind: str) -> type[Any]:
    """The class of a key of `BACKBONES`."""
    return load_class(BACKBONES, kind, "model.kind")


def __getattr__(name: str) -> Any:
    paths = {path.split(":")[1]: path for path in (*BACKBONES.values(), *_OTHERS.values())}
    if name not in paths:
        raise AttributeError(f"module 'highrank.models' has no attribute {name!r}")
    return load_class(paths, name, "name")
