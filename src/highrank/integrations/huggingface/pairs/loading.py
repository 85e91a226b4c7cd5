"""Encoder–decoders by their folder or their name on the hub, with their tokenizers."""

import re
from pathlib import Path
from typing import Any

from highrank.integrations.huggingface.reader import HubError, HuggingFaceModel, is_hub_name
from highrank.integrations.huggingface.variants import VARIANT_FILE

# Languages of NLLB, as deu_Latn.
LANGUAGE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


class EncoderDecoder(HuggingFaceModel):
    """A model that writes a target for a source: configuration and tokenizer, weights later.

    Languages and prefix are saved with model and tokenizer: a saved folder knows them.

    Args:
        source_lang: language of the sources, as the tokenizer of a model of several languages calls
            it; None if its folder knows it.
        target_lang: language of the targets.
        source_prefix: before each source, as "translate English to German: " for T5; None leaves it
            as the folder has it.
    """

    auto_class = "AutoModelForSeq2SeqLM"

    def __init__(
        self,
        name: str,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        source_prefix: str | None = None,
    ) -> None:
        _check_place(name)
        try:
            super().__init__(name)
        except HubError as error:
            raise ValueError(
                f"a model must be a folder or a name on the hub, got {name}: there is no such "
                f"folder here, and {error}"
            ) from None
        if source_prefix is not None:
            self.config.prefix = source_prefix
        self.languages = _languages(self.tokenizer)
        given = {"source-lang": source_lang, "target-lang": target_lang}
        known = " ".join(self.languages)
        if not self.languages and (source_lang or target_lang):
            raise ValueError(
                f"source-lang and target-lang must go with a model of several languages, got {name}"
            )
        if self.languages and self.tokenizer.tgt_lang is None and None in given.values():
            raise ValueError(
                f"source-lang and target-lang must be given with {name}, which has {known}"
            )
        for option, value in given.items():
            if value is None:
                continue
            if value not in self.languages:
                raise ValueError(f"{option} must be a language of {name}, got {value}: {known}")
            setattr(self.tokenizer, "src_lang" if option == "source-lang" else "tgt_lang", value)

    def check_kind(self) -> None:
        """Refuse what is no encoder–decoder."""
        if not self.config.is_encoder_decoder:
            raise ValueError(
                f"a model must be an encoder–decoder to read pairs, got {self.name}, whose type "
                f"{self.config.model_type} reads one text: finetune it without --task"
            )

    def load_weights(self, device: str = "cpu") -> Any:
        """The model of transformers in evaluation mode, which writes the target's language."""
        model = super().load_weights(device)
        if self.languages:
            language = self.languages[self.tokenizer.tgt_lang]
            if self.tokenizer(text_target="")["input_ids"][0] == language:
                model.generation_config.forced_bos_token_id = language
            else:
                # mBART's targets end with their language, which is then shifted to their start.
                model.config.decoder_start_token_id = language
                model.generation_config.decoder_start_token_id = language
        return model


def _check_place(name: str) -> None:
    """Refuse files, folders of several models, and paths to nothing: the hub is not asked."""
    path = Path(name)
    if not path.is_dir() and (path.is_file() or not is_hub_name(name)):
        kind = "the file " if path.is_file() else ""
        raise ValueError(f"a model must be a folder or a name on the hub, got {kind}{name}")
    if models := sorted(str(file.parent) for file in path.glob(f"*/{VARIANT_FILE}")):
        raise ValueError(
            f"a model must be one of those in the folder, got {name}: it has {', '.join(models)}"
        )


def _languages(tokenizer: Any) -> dict[str, int]:
    """Token ids of the languages between which a tokenizer can choose, by their names."""
    if not hasattr(tokenizer, "src_lang"):
        return {}
    found = getattr(tokenizer, "lang_code_to_id", None) or {
        token: tokenizer.convert_tokens_to_ids(token)
        for token in tokenizer.all_special_tokens
        if LANGUAGE.fullmatch(token)
    }
    return {name: index for name, index in found.items() if index != tokenizer.unk_token_id}


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
        "dropout must go with a configuration that has dropout or dropout_rate, got "
        f"{config.model_type}"
    )
