"""Hugging Face: its models read and upgraded, our runs exported."""

from typing import Any


def register() -> None:
    """Let `AutoModelForCausalLM` of transformers load models that were upgraded and saved.

    It then also loads runs that `highrank export` wrote, and `AutoTokenizer` their tokenizers.
    `import highrank` does it by itself, before or after `import transformers`.
    """
    from highrank.integrations.huggingface.library import check_installed

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
