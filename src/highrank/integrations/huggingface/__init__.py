"""Hugging Face: its models read and upgraded, our runs exported."""

from typing import Any

from highrank.integrations.huggingface.library import check_installed


def register() -> None:
    """Let `AutoModelForCausalLM` of transformers load models that were upgraded and saved.

    It then also loads runs that `highrank export` wrote, and `AutoTokenizer` their tokenizers.
    `highrank.upgrade` and `highrank.load_huggingface` do it by themselves.
    """
    check_installed("load a Hugging Face model")
    from transformers import AutoConfig

    from highrank.integrations.huggingface.auto import ExportedConfig, UpgradedConfig

    for config in (UpgradedConfig, ExportedConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def load_huggingface(name: str, **options: Any) -> Any:
    """`AutoModelForCausalLM.from_pretrained(name, **options)`, for upgraded models, too."""
    register()
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(name, **options)
