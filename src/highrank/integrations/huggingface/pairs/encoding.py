"""Texts of pairs as token ids, cut where a model reads no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# Most tokens of a text, also for models that would read more.
LONGEST = 1024
POSITIONS = (
    "max_position_embeddings",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
)


class Encoded(NamedTuple):
    ids: list[list[int]]
    """Of each text, special tokens included."""
    is_cut: list[bool]
    """Whether a part of the text is missing."""


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """The tokenizer of an encoder–decoder, and what the model wants of its texts.

    Args:
        limit: most tokens of a text.
        prefix: before each source, as T5 has it: "translate English to German: ".
        keeps_end: whether a source that is too long loses its beginning, as the oldest utterances
            of a dialogue, and not its end.
    """

    tokenizer: Any
    limit: int
    prefix: str = ""
    keeps_end: bool = False

    @staticmethod
    def of(config: Any, tokenizer: Any, *, keeps_end: bool = False) -> "TextEncoder":
        """For the model of a configuration."""
        found = (getattr(config, name, None) for name in POSITIONS)
        return TextEncoder(
            tokenizer=tokenizer,
            limit=min([LONGEST, *(number for number in found if number)]),
            prefix=getattr(config, "prefix", None) or "",
            keeps_end=keeps_end,
        )

    def sources(self, texts: Sequence[str]) -> Encoded:
        return self._encode([self.prefix + text for text in texts], "text", self.keeps_end)

    def targets(self, texts: Sequence[str]) -> Encoded:
        # Some tokenizers have another form for targets.
        return self._encode(texts, "text_target", False)

    def _encode(self, texts: Sequence[str], name: str, keeps_end: bool) -> Encoded:
        if not texts:
            return Encoded([], [])
        found = self.tokenizer(**{name: list(texts)}, verbose=False)["input_ids"]
        is_cut = [len(ids) > self.limit for ids in found]
        side = self.tokenizer.truncation_side
        self.tokenizer.truncation_side = "left" if keeps_end else "right"
        try:
            # By the tokenizer, which knows the special tokens that stay.
            ids = [
                self.tokenizer(**{name: text}, truncation=True, max_length=self.limit)["input_ids"]
                if cut
                else list(row)
                for text, row, cut in zip(texts, found, is_cut, strict=True)
            ]
        finally:
            self.tokenizer.truncation_side = side
        return Encoded(ids, is_cut)
