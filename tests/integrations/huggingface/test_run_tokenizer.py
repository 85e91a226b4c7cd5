"""The exported tokenizer makes of every text what a prompt of `highrank generate` becomes."""

import random

import pytest

from highrank.data.corpus import Recipe
from highrank.data.subwords import is_subword, learn
from highrank.data.tokenizer import TOKENIZERS, readable
from highrank.data.vocabulary import Vocabulary
from highrank.predictor import prompt_tokens

pytest.importorskip("transformers")
from highrank.integrations.huggingface.run_tokenizer import RunTokenizer, make_tokenizer

# Letters, marks, digits and spaces on which Python and Oniguruma disagree; what looks special.
SIGNS = [*"abAB12 .,-'’\n\n <>$\t\r_éß", "<eos>", "<unk>", "ä́", "²", "Ⅷ", "‿", "\x1c", "\x85"]
SIGNS += ["\u2028", "…", "३", "က", "်", "😀", "\xa0", "日", "\u200b", "İ", "--", "..", "1.5"]


@pytest.fixture(scope="module")
def texts():
    rng = random.Random(0)
    return ["".join(rng.choices(SIGNS, k=rng.randrange(12))) for _ in range(500)]


def vocabulary_of(texts, recipe):
    """Four fifths of the tokens, so that there are unknown ones."""
    tokens = {token for text in texts for token in prompt_tokens(text, recipe)}
    known = sorted(tokens - {"<unk>", "<eos>"})
    return Vocabulary(("<unk>", "<eos>", *(t for i, t in enumerate(known) if i % 5)))


@pytest.mark.parametrize("lower", [False, True], ids=["as written", "lower-cased"])
@pytest.mark.parametrize("name", [*TOKENIZERS, "bpe:300", "unigram:300"])
def test_encodes_as_our_tokenizers(name, lower, texts, tmp_path):
    learned = learn(name, texts) if is_subword(name) else None
    recipe = Recipe(tokenizer=name, split="", lower=lower, subwords=learned)
    if learned is None:
        vocabulary = vocabulary_of(texts, recipe)
    else:
        vocabulary = Vocabulary(tuple(learned.vocabulary))
    make_tokenizer(vocabulary, recipe).save_pretrained(tmp_path)
    tokenizer = RunTokenizer.from_pretrained(tmp_path)
    assert tokenizer.vocabulary == vocabulary and tokenizer.recipe.subwords == learned
    for text in texts:
        want = vocabulary.encode(prompt_tokens(text, recipe)).tolist()
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == want, repr(text)
        assert tokenizer(text)["input_ids"] == [vocabulary.eos, *want]
        assert tokenizer.decode([vocabulary.eos, *want], skip_special_tokens=True) == readable(
            vocabulary.decode(want), recipe.level
        )


def test_unknown_tokens_without_unk_are_refused_as_ours_are():
    recipe = Recipe(tokenizer="whitespace", split="")
    tokenizer = make_tokenizer(Vocabulary(("a", "<eos>")), recipe)
    assert tokenizer("a\na")["input_ids"] == [1, 0, 1, 0]
    with pytest.raises(Exception, match="UNK"):
        tokenizer("b")


def test_a_vocabulary_without_lines_is_refused():
    with pytest.raises(ValueError, match="must have <eos> for the ends of lines, got none"):
        make_tokenizer(Vocabulary(("a", "b")), Recipe(tokenizer="words", split=""))
