"""Configurations of our models as `AutoConfig` of transformers first meets them.

They import the real ones when a folder is loaded: until then it costs nothing that they are known.
"""

from typing import Any

from transformers import PreTrainedConfig


class UpgradedConfig(PreTrainedConfig):
    """A model that `highrank.upgrade` made."""

    model_type = "highrank"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        from highrank.integrations.huggingface.model import upgraded_classes

        config = upgraded_classes(config_dict["base_model_type"])[0]
        return config.from_dict(config_dict, **kwargs)


class ExportedConfig(PreTrainedConfig):
    """A run that `highrank export` wrote."""

    model_type = "highrank-run"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        from highrank.integrations.huggingface.run_model import RunModelConfig, register

        register()
        return RunModelConfig.from_dict(config_dict, **kwargs)
