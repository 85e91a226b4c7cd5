"""What a prepared corpus says about itself: counts, hashes, and how it was made."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

FORMAT, VERSION = "highrank corpus", 1
SPLITS = ("train", "valid", "test")
# Little-endian unsigned integers of two bytes, which are enough for 65,536 words, and of four.
DTYPES = ("<u2", "<u4")

Level = Literal["word", "char"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How text became tokens."""

    tokenizer: str
    """Key of `highrank.data.tokenizer.TOKENIZERS`."""
    split: str
    """The rule by which text went to train, valid and test, in words."""
    lower: bool = False
    """Whether the text was lower-cased first."""
    vocabulary: Literal["appearance", "frequency"] = "frequency"
    """All words of all splits in order of first appearance; or `<unk>`, `<eos>` and the words of
    the training text, most frequent first, ties by alphabet."""
    min_count: int = 1
    """A word that the training text has less often is `<unk>`."""
    max_vocab: int | None = None
    """Only so many words, `<unk>` and `<eos>` among them; the rarer ones are `<unk>`."""

    @property
    def level(self) -> Level:
        return "char" if self.tokenizer == "characters" else "word"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that the corpus was made of."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """A file of token ids."""

    num_tokens: int
    """With `<eos>` and `<unk>`."""
    num_unknown: int
    """How many of them are `<unk>`."""
    sha256: str

    @property
    def unknown_share(self) -> float:
        return self.num_unknown / self.num_tokens


@dataclass(frozen=True, kw_only=True)
class Header:
    """`corpus.json`."""

    name: str
    level: Level
    dtype: str
    """Of the token files: one of `DTYPES`."""
    splits: dict[str, Split]
    vocab_size: int
    vocab_sha256: str
    sources: tuple[Source, ...]
    recipe: Recipe
    made_by: str
    """Name and version of the program."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION} | asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        content: dict[str, Any] = json.loads(text)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"its format must be {FORMAT!r}")
        version = content.pop("version", None)
        if version != VERSION:
            raise ValueError(f"its version must be {VERSION}, got {version}")
        if content.get("dtype") not in DTYPES:
            raise ValueError(f"its dtype must be one of {DTYPES}, got {content.get('dtype')}")
        try:
            splits = {name: Split(**content["splits"].pop(name)) for name in SPLITS}
            content |= {
                "splits": splits,
                "sources": tuple(Source(**source) for source in content["sources"]),
                "recipe": Recipe(**content["recipe"]),
            }
            return cls(**content)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its fields must be those of {FORMAT!r}: {error}") from error
