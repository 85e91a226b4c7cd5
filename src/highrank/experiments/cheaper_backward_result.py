"""What `cheaper_backward.py` measured: plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The language model and its training."""

    hidden_size: int = 256
    embedding_size: int = 128
    num_components: int = 10
    dropout: float = 0.2
    """On the embeddings, the hidden states and the contexts."""
    lr: float = 1e-2
    """Of AdamW."""
    batch_size: int = 20
    window: int = 35
    """Steps of backpropagation through time."""
    num_valid_tokens: int = 20_000
    """How much of the validation text is evaluated, from its beginning."""
    tokens_per_mark: int = 100_000
    """How often a learner is evaluated, counted in its training tokens."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A time as a multiple of the exact loss's, measured in alternation: median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """A learner at one moment of its training."""

    elapsed: float
    """Seconds of training; evaluation does not count."""
    num_tokens: int
    """Training tokens seen."""
    perplexity: float
    """On the validation text."""


@dataclass(frozen=True, kw_only=True)
class SelectionError:
    """What a selection does to one batch's gradients, for the mixture that learned exactly."""

    kept_share: float
    """Rows (token, component) that take part in the backward pass."""
    weight: float
    """‖Δ∂W‖ / ‖∂W‖, of the output embedding's gradient."""
    context: float
    """The same of the contexts' gradient."""


@dataclass(frozen=True, kw_only=True)
class ContestantResult:
    name: str
    """A key of `cheaper_backward.contestants`."""
    selection: SelectionError
    effective_components: float
    """exp of the mean entropy of the responsibilities, for the contestant's own mixture."""
    head_seconds: float
    """Forward and backward pass of the head: median."""
    head_ratio: Ratio
    step_seconds: float
    """A whole training step: median."""
    step_ratio: Ratio
    by_time: tuple[Point, ...]
    """At equal times."""
    by_tokens: tuple[Point, ...]
    """At equal numbers of training tokens."""


@dataclass(frozen=True, kw_only=True)
class CheaperBackwardResult:
    seed: int
    minutes: float
    """Training time of each contestant."""
    vocab_size: int
    num_threads: int
    sizes: Sizes
    elapsed: float
    """Seconds, of everything."""
    contestants: tuple[ContestantResult, ...]
