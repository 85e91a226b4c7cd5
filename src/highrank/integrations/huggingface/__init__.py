"""Hugging Face: its models read and upgraded, our runs exported."""

from typing import Any


def register() -> None:
    """Let Auto classes of transformers load models that were upgraded and saved.

    `AutoModelForCausalLM` then also loads runs that `highrank export` wrote, and `AutoTokenizer`
    their tokenizers. `import highrank` does it by itself, before or after `import transformers`.
    """
    from highrank.integrations.huggingface.library import check_installed

    check_installed("load a Hugging Face model")
    from transformers import AutoConfig

    from highrank.integrations.huggingface.auto import ExportedConfig, UpgradedConfig

    for config in (UpgradedConfig, ExportedConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def load_huggingface(name: str, **options: Any) -> Any:
    """`from_pretrained(name, **options)` of the Auto class, for upgraded models, too.

    It is `AutoModelForSeq2SeqLM` for a model with an encoder, and else `AutoModelForCausalLM`.
    """
    register()
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = (
        options["config"] if "config" in options else AutoConfig.from_pretrained(name, **options)
    )
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_pretrained(name, **options)
