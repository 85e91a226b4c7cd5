"""A made text in the layout of the One Billion Word Benchmark: for speed and memory, not for words.

    python benchmarks/made_corpus.py FOLDER --tokens 20_000_000
    highrank data prepare one-billion --from FOLDER --name made

99 training shards and two held-out ones of sentences: words by Zipf's law, of which each half of
the time follows the word before it, so that there is something to learn.
"""

from pathlib import Path

import numpy as np
import tyro

LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype="S1")
BLOCK_TOKENS = 1 << 20
# The benchmark has 27.4 tokens and 139.9 bytes a sentence, with the newline.
MEAN_WORDS = 26.4
# The largest step from a word's rank to that of a word after it.
STEP = 7919


def made_words(vocab_size: int, generator: np.random.Generator) -> list[bytes]:
    """Different words of letters, the frequent ones short."""
    words: dict[bytes, None] = {}
    while len(words) < vocab_size:
        length = 1 + generator.poisson(np.log10(10 + len(words)) * 1.2)
        words[b"".join(generator.choice(LETTERS, length))] = None
    return list(words)


def made_ranks(size: int, cumulative: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Ranks of words: half are drawn, and half are a function of the word before."""
    ranks = cumulative.searchsorted(generator.random(size))
    follows = np.flatnonzero(generator.random(size - 1) < 0.5) + 1
    # A power keeps frequent words frequent.
    ranks[follows] = (ranks[follows - 1] * STEP + 1) % np.maximum(1, ranks[follows] + 1)
    return ranks


def write_shard(path: Path, num_tokens: int, words: list[bytes], seed: int) -> None:
    generator = np.random.default_rng(seed)
    weight = 1 / (np.arange(len(words)) + 2.7)
    cumulative = np.cumsum(weight / weight.sum())
    cumulative[-1] = 1.0
    table = np.array(words, dtype=object)
    with path.open("wb") as file:
        while num_tokens > 0:
            size = min(BLOCK_TOKENS, num_tokens)
            tokens = table[made_ranks(size, cumulative, generator)].tolist()
            lengths = 1 + generator.negative_binomial(3, 3 / (2 + MEAN_WORDS), size // 20 + 2)
            ends = np.minimum(np.cumsum(lengths), size)
            starts = np.concatenate(([0], ends[:-1]))
            lines = [b" ".join(tokens[a:b]) for a, b in zip(starts, ends, strict=True) if a < b]
            file.write(b"\n".join(lines) + b"\n")
            num_tokens -= int(ends[-1]) + len(lines)


def made_corpus(
    folder: tyro.conf.Positional[Path], tokens: int = 20_000_000, vocab: int = 200_000
) -> None:
    """Make a text in the layout of the One Billion Word Benchmark.

    Args:
        folder: Where to write it.
        tokens: Of all training shards.
        vocab: Different words.
    """
    words = made_words(vocab, np.random.default_rng(0))
    train = folder / "training-monolingual.tokenized.shuffled"
    heldout = folder / "heldout-monolingual.tokenized.shuffled"
    for place in (train, heldout):
        place.mkdir(parents=True, exist_ok=True)
    for shard in range(1, 100):
        write_shard(train / f"news.en-{shard:05}-of-00100", tokens // 99, words, shard)
    for shard in range(2):
        path = heldout / f"news.en.heldout-{shard:05}-of-00050"
        write_shard(path, min(160_000, tokens // 99), words, 1000 + shard)


if __name__ == "__main__":
    tyro.cli(made_corpus)
