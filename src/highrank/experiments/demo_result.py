"""What the demo measured: plain data, made by `demo.py`, shown by `reports/demo.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One head, fitted to one language by minimising the exact cross-entropy."""

    head: str
    """"softmax", "moc" or "mos"."""
    context_size: int
    """Size d of the vectors that meet the output embedding."""
    num_components: int
    """K; 1 for a softmax."""
    num_parameters: int
    """All trained numbers, the free vector of each context included."""
    matches: int | None
    """For a softmax that was made as large as a mixture: the mixture's d. None otherwise."""
    excess: float
    """Cross-entropy minus the language's entropy rate, in nats per token. Exact, never negative."""
    rank: int
    """Numerical rank of the log-probability matrix (float64, Press threshold)."""
    rank_bound: int | None
    """What the architecture allows; None where no bound is known."""
    singular_values: tuple[float, ...]
    """Of the log-probability matrix, descending."""
    example: tuple[float, ...]
    """Probabilities of `LanguageResult.example_words` in the example context."""


@dataclass(frozen=True, kw_only=True)
class LanguageResult:
    """A language whose true distribution is known, and the heads fitted to it."""

    name: str
    """"factorised" or "senses"."""
    vocab_size: int
    num_contexts: int
    rank: int
    """Numerical rank of the true log-probability matrix."""
    entropy: float
    """Exact entropy rate, in nats per token: the floor of every model's cross-entropy."""
    singular_values: tuple[float, ...]
    """Of the true log-probability matrix, descending."""
    example_context: int
    """Where the softmax of the close-up size is worst: the largest divergence from the truth."""
    example_words: tuple[int, ...]
    """The likeliest words of the example context, likeliest first."""
    example: tuple[float, ...]
    """Their true probabilities."""
    fits: tuple[Fit, ...]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    seed: int
    quick: bool
    elapsed: float
    """Seconds."""
    languages: tuple[LanguageResult, ...]
