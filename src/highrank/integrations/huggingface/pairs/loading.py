"""Encoder–decoders by their folder or their name on the hub, with their tokenizers."""

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
