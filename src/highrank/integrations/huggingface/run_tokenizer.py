"""A run's vocabulary as a tokenizer of transformers that splits texts as `data/tokenizer.py` does.

Encoding is that of a prompt of `highrank generate`: every newline ends a line, and the text starts
after the end of a line. The rules become regular expressions of `tokenizers`; what Python means by
letters, digits and spaces is written out, because Oniguruma means something else. One difference is
left, for corpora that were lower-cased: a Greek sigma that ends a word becomes σ and not ς.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Normalizer, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from highrank.data import subwords
from highrank.data.corpus import Recipe
from highrank.data.subwords import learned_by
from highrank.data.tokenizer import readable
from highrank.data.vocabulary import EOS, UNK, Vocabulary

NEWLINE = "\n"


class RunTokenizer(PreTrainedTokenizerFast):
    """Decodes as `highrank generate` prints.

    The line end that a text starts after is its BOS token; `skip_special_tokens` leaves it out, and
    no other token. There is no EOS token: a line's end does not end a text.
    """

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    # transformers builds a class with an __init__ of its own without its tokenizer.json.
    @property
    def recipe(self) -> Recipe:
        """How text becomes tokens."""
        recipe = Recipe(**self.init_kwargs["text_rules"], split="not known")
        if recipe.level != "subword":
            return recipe
        return replace(recipe, subwords=learned_by(self.backend_tokenizer))

    @property
    def vocabulary(self) -> Vocabulary:
        """The run's vocabulary."""
        tokens = self.convert_ids_to_tokens(list(range(len(self))))
        return Vocabulary(tuple(EOS if token == self.bos_token else token for token in tokens))

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **options: Any,
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if skip_special_tokens and ids[:1] == [self.bos_token_id]:
            ids = ids[1:]
        tokens = self.convert_ids_to_tokens(ids)
        level = Recipe(**self.init_kwargs["text_rules"], split="not known").level
        return readable([EOS if token == self.bos_token else token for token in tokens], level)


def make_tokenizer(vocabulary: Vocabulary, recipe: Recipe) -> RunTokenizer:
    """The tokenizer of a run; a vocabulary without `<eos>` has no lines, and is refused."""
    if vocabulary.eos is None or NEWLINE in vocabulary:
        found = "none" if vocabulary.eos is None else f"also {NEWLINE!r}"
        raise ValueError(f"the vocabulary must have {EOS} for the ends of lines, got {found}")
    # Characters are exact with the newline itself as the token: "<eos>" is five of them.
    end = {"char": NEWLINE, "subword": subwords.NEWLINE}.get(recipe.level, EOS)
    if recipe.subwords is not None:
        rules: list[Normalizer] = []
        backend = subwords.make_backend(recipe.subwords)
    else:
        ids = {end if token == EOS else token: i for i, token in enumerate(vocabulary.tokens)}
        backend = Tokenizer(WordLevel(ids, unk_token=UNK))
        make_rules, pattern = RULES[recipe.tokenizer]
        rules = make_rules()
        backend.pre_tokenizer = Split(Regex(pattern()), "removed", invert=True)
    backend.normalizer = Normalizers([*([Lowercase()] if recipe.lower else []), *rules])
    backend.post_processor = TemplateProcessing(
        single=[end, "$A"], pair=[end, "$A", "$B"], special_tokens=[(end, vocabulary.eos)]
    )
    special = AddedToken(end, special=True, normalized=False)
    return RunTokenizer(
        tokenizer_object=backend,
        bos_token=special,
        pad_token=special,
        unk_token=UNK if vocabulary.unk is not None else None,
        # What looks like a special token in a text is text, as it was in training.
        split_special_tokens=True,
        padding_side="left",
        text_rules={"tokenizer": recipe.tokenizer, "lower": recipe.lower},
    )


def _word_rules() -> list[Normalizer]:
    space = "[" + _characters(r"\s") + "]"
    return [
        # What is no end of a line: three tokens.
        Replace(EOS, f"{EOS[0]} {EOS[1:-1]} {EOS[-1]}"),
        # Lines without a token vanish.
        Replace(Regex(rf"\A{space}*\n"), ""),
        Replace(Regex(rf"\n{space}*\n"), NEWLINE),
        Replace(NEWLINE, f" {EOS} "),
    ]


def _word_pattern() -> str:
    """As `_pattern` in `data/tokenizer.py`."""
    word, digit, space = (_characters(kind) for kind in (r"\w", r"\d", r"\s"))
    marks = (c for c in _all_characters() if unicodedata.category(c).startswith("M"))
    letter, digit = f"[{word}{_characters('[' + ''.join(marks) + ']')}]", f"[{digit}]"
    return (
        rf"{EOS}|{UNK}|{digit}+(?:[.,]{digit}+)+|{letter}+(?:['’\-]{letter}+)*|\.\.+|--+"
        rf"|[^{word}{space}]"
    )


@cache
def _characters(kind: str) -> str:
    """The inside of a class of what Python's regular expressions mean by it, such as \\w."""
    runs = (match.span() for match in re.finditer(f"{kind}+", _all_characters()))
    return "".join(rf"\x{{{a:x}}}-\x{{{b - 1:x}}}" for a, b in runs)


@cache
def _all_characters() -> str:
    """All characters in the order of code points, with a sign in place of surrogates."""
    return "".join("!" if 0xD800 <= point < 0xE000 else chr(point) for point in range(0x110000))


# Functions that make the normalizers and the pattern of a token.
RULES: dict[str, tuple[Callable[[], list[Normalizer]], Callable[[], str]]] = {
    "words": (_word_rules, _word_pattern),
    "whitespace": (
        lambda: [Replace(NEWLINE, f" {EOS} ")],
        lambda: "[^" + _characters(r"\s") + "]+",
    ),
    "characters": (list, lambda: r"(?m:.)"),
}
