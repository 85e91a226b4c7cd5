"""What an audit found: plain data, as the JSON file has it.

T contexts, V tokens of the vocabulary, K components, d size of what meets the output embedding.
"""

from dataclasses import dataclass

from highrank.analysis.components import ComponentReport
from highrank.analysis.divergence import Divergence
from highrank.environment import Environment


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    """The output layer, as the model's files give it."""

    kind: str
    """A key of `highrank.heads.HEADS`; "softmax" for a Hugging Face model as it comes."""
    vocab_size: int
    """V."""
    context_size: int
    """d."""
    num_components: int
    """K; 1 for a softmax."""
    has_bias: bool
    softcap: float | None
    """c, where logits are c · tanh(logits / c); None for most."""
    scale: float
    """What the logits are multiplied by before any softcap; 1 for most."""
    dtype: str
    """Of the output embedding, as "float32"."""
    is_tied: bool
    """Whether the output embedding is the input embedding."""


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """The text of the contexts."""

    name: str
    """Of the file, or corpus and split, as "penn-treebank/test"."""
    sha256: str
    """Of the file, or of the split's token file."""
    tokens_sha256: str
    """Of the written tokens: equal for models that tokenise the text alike."""
    num_tokens: int
    """Of the text, or of what was taken of a long file, in the model's own tokens."""
    num_contexts: int
    """T: how many contexts were taken, in windows that are spread evenly over these tokens."""
    nats: float
    """Mean negative log-likelihood of the tokens that follow these contexts, in nats per token: a
    sample, not an evaluation of the text, and each context has some 100 tokens at most. Comparable
    between models that have the same text and the same vocabulary only."""
    perplexity: float
    """exp of that."""
    shuffled_nats: float
    """The control of `nats`: each context is scored with the token that follows another one, half
    of the contexts away."""
    shuffled_perplexity: float
    """exp of that."""


@dataclass(frozen=True, kw_only=True)
class RankAt:
    """The rank of the first contexts alone."""

    num_contexts: int
    measures: dict[str, float | None]
    """By the keys of `highrank.analysis.rank.MEASURES`; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """The T×V matrix of log-probabilities, or its sampled columns, computed in float64."""

    num_contexts: int
    """Rows."""
    num_tokens: int
    """Columns: V, or how many of the tokens were drawn."""
    method: str
    """"linear", "stable" or "fast"."""
    method_reason: str
    """Why this method and this number of tokens, in a clause."""
    measures: dict[str, float | None]
    """By the keys of `highrank.analysis.rank.MEASURES`; None if unknown."""
    unknown: str
    """Why a numerical rank is unknown; empty if both are known."""
    bound: int | None
    """The highest rank that the head's form allows; None where no bound is known."""
    bound_reason: str
    """What the bound is made of, or why there is none."""
    ceiling: int
    """The highest rank that this measurement could have shown: the least of contexts, tokens
    and bound."""
    ceiling_reason: str
    """Which of the three: "contexts", "tokens" or "bound"."""
    largest: float
    """σ_max."""
    noise_floor: float
    """Round-off: singular values at or below it are unknown."""
    singular_values: tuple[float, ...]
    """Descending; those that are left out are zero by construction."""
    growth: tuple[RankAt, ...]
    """Rank against the number of contexts, ascending; the last is of all contexts."""

    @property
    def numerical_rank(self) -> float | None:
        """With the tolerance of float32."""
        return self.measures["numerical_rank_float32"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """What the same head with random weights has on the same contexts."""

    description: str
    """What was drawn, and how."""
    num_contexts: int
    """The first so many: all for a linear head, where it costs little, and a quarter for others.
    `RankFacts.growth` has the model's own ranks of these."""
    measures: dict[str, float | None]
    """By the keys of `highrank.analysis.rank.MEASURES`; None if unknown."""
    divergence: float
    """In nats."""
    specialisation: float | None
    """I(component; token), in nats; None for heads with one component."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether the bound of one softmax limits the model, by the rule of `answer.py`."""

    verdict: str
    """"yes", "no" or "unknown"."""
    sentence: str
    """Begins with yes, no or cannot tell."""


@dataclass(frozen=True, kw_only=True)
class UnargmaxableToken:
    token: str
    index: int
    """In the vocabulary."""
    is_exact: bool
    """Whether the proof leaves no rounding error at all."""
    lead: float
    """In no state does the token lead by more than this: at most 0 for an exact proof."""
    between: tuple[str, ...]
    """The heaviest of the tokens whose mean it is, at most five; empty if the token is
    forbidden."""


@dataclass(frozen=True, kw_only=True)
class UnargmaxableFacts:
    """Which tokens some hidden state makes the most likely; the counts add up to V."""

    states: str
    """Which hidden states were allowed, in words."""
    num_argmaxable: int
    """A state was found and checked, tokens that always tie with others included."""
    num_tied: int
    """Of the argmaxable, those that share vector and bias with another token."""
    num_unargmaxable: int
    """Proved."""
    num_undecided: int
    """Too close to call."""
    num_untried: int
    """Left without a verdict for lack of time: 0 unless `--quick`."""
    unargmaxable: tuple[UnargmaxableToken, ...]
    """All of them, in the order of the vocabulary."""
    elapsed: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class ModelAudit:
    name: str
    """As the user gave it."""
    answer: Answer
    source: str
    """"run" (of ours) or "huggingface"."""
    architecture: str
    """As "AWD-LSTM" or "GPT2LMHeadModel"."""
    num_parameters: int
    """A tied embedding counts once."""
    head: HeadFacts
    text: TextFacts
    rank: RankFacts
    divergence: Divergence
    """How far apart the predictions of two contexts are on average, in nats."""
    control: Control
    unargmaxable: UnargmaxableFacts | None
    unargmaxable_note: str
    """Why `unargmaxable` is None; empty if it is there."""
    mixture: ComponentReport | None
    """None for heads with one component."""
    elapsed: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    answer: str
    """The sentence of a model, or which of several have which answer."""
    quick: bool
    num_contexts: int
    """How many contexts were asked for; a short text may have fewer."""
    elapsed: float
    """Seconds."""
    environment: Environment
    models: tuple[ModelAudit, ...]
    """In the order in which they were named."""
