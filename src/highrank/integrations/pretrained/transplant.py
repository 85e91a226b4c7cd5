"""A model of another class around the same body: no weight is copied."""

from typing import Any

import torch
from torch import nn

# What the configurations of upgraded models have of their own.
OF_UPGRADED = ("model_type", "base_model_type", "output_head")


def transplanted(model: Any, new_class: Any, fields: dict[str, Any], output: nn.Module) -> Any:
    """A model of a class with the body and the state of `model`, and with this output layer.

    Args:
        fields: of the configuration that differ from those of `model`.
    """
    known = model.config.to_dict()
    shared = {name: value for name, value in known.items() if name not in OF_UPGRADED}
    config = new_class.config_class.from_dict({**shared, **fields})
    config._attn_implementation = model.config._attn_implementation
    config.name_or_path = model.config.name_or_path
    with torch.device("meta"):
        new = new_class(config)
    path = output_path(new)
    for parts in ("_modules", "_parameters", "_buffers"):
        getattr(new, parts).update(getattr(model, parts))
    new.set_submodule(path, output)
    for module in new.modules():
        if vars(module).get("config") is model.config:
            module.config = config
        # Attributes that a module has read from its configuration.
        for name in vars(module).keys() & fields.keys():
            setattr(module, name, fields[name])
    if model.can_generate():
        new.generation_config = model.generation_config
    return new.train(model.training)


def output_path(model: Any) -> str:
    """The name of the module that is the output layer."""
    output = model.get_output_embeddings()
    found: str = next(name for name, module in model.named_modules() if module is output)
    return found
