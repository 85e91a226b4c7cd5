"""Encoder–decoders by their folder or their name on the hub, with their tokenizers."""

from typing import Any

from highrank.integrations.huggingface.reader import HuggingFaceModel


class EncoderDecoder(HuggingFaceModel):
    """A model that writes a target for a source: configuration and tokenizer, weights later."""

    auto_class = "AutoModelForSeq2SeqLM"

    def check_kind(self) -> None:
        """Refuse what is no encoder–decoder."""
        if not self.config.is_encoder_decoder:
            raise ValueError(
                f"a model must be an encoder–decoder to read pairs, got {self.name}, whose type "
                f"{self.config.model_type} reads one text: finetune it without --task"
            )


def set_dropout(config: Any, value: float | None) -> None:
    """Change the dropout of a configuration, whatever its field is called; None changes nothing."""
    if value is None:
        return
    # T5 and its kin have the second.
    for name in ("dropout", "dropout_rate"):
        if hasattr(config, name):
            setattr(config, name, value)
            return
    raise ValueError(
        f"dropout must go with a configuration that has dropout or dropout_rate, got "
        f"{config.model_type}"
    )
