"""What an audit found: plain data, made by `audit.py`, shown by `reports/audit.py`.

T contexts, V words of the vocabulary, K components, d size of what meets the output embedding.
"""

from dataclasses import dataclass

from highrank.analysis.divergence import Divergence
from highrank.environment import Environment


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    """The output layer, as the model's files give it."""

    kind: str
    """"softmax", "moc" or "mos"; a Hugging Face model's head is a "softmax"."""
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
    """What the model read."""

    name: str
    """Of the file, or corpus and split, as "penn-treebank, test"."""
    sha256: str
    """Of the file, or of the split's token file."""
    tokens_sha256: str
    """Of the text as the model's tokens are written: equal for models that cut it alike."""
    num_tokens: int
    """Of the text, or of what was taken of a long file, in the model's own tokens."""
    num_contexts: int
    """T: how many contexts were taken, in stretches that are spread evenly over these tokens."""
    nats: float
    """Mean negative log-likelihood of the tokens that follow these contexts, in nats per token: a
    sample, not an evaluation of the text, and each context is read after some 100 tokens at most.
    Comparable between models that have the same text and the same vocabulary only."""
    perplexity: float
    """exp of that."""


@dataclass(frozen=True, kw_only=True)
class EffectiveRank:
    epsilon: float
    rank: int
    """How many singular values carry all but ε of the sum of squares."""


@dataclass(frozen=True, kw_only=True)
class RankAt:
    """The rank of the first contexts alone."""

    num_contexts: int
    comparable: int | None
    """Singular values above float32's round-off, as the literature counts; None if unknown."""
    certified: int | None
    """Singular values above float64's round-off; None if unknown."""
    effective: tuple[EffectiveRank, ...]


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """The T×V matrix of log-probabilities, or its sampled columns, made in float64."""

    num_contexts: int
    """Rows."""
    num_words: int
    """Columns: V, or how many of the words were drawn."""
    method: str
    """"linear", "stable" or "fast"."""
    method_reason: str
    """Why this method and this number of words, a clause in plain words."""
    comparable: int | None
    """Singular values above float32's round-off, as the literature counts; None if unknown."""
    certified: int | None
    """Singular values above float64's round-off; None if unknown."""
    unknown: str
    """Why a rank is missing; empty if none is."""
    bound: int | None
    """The highest rank that the head's form allows; None where no bound is known."""
    bound_reason: str
    """What the bound is made of, or why there is none."""
    ceiling: int
    """The highest rank that this measurement could have shown: the least of contexts, words
    and bound."""
    ceiling_reason: str
    """Which of the three: "contexts", "words" or "bound"."""
    effective: tuple[EffectiveRank, ...]
    """By ε, largest ε first."""
    stable: float
    """Σσ² / σ_max²."""
    entropy: float
    """exp of the entropy of σ / Σσ: Roy and Vetterli's effective rank."""
    largest: float
    """σ_max."""
    noise_floor: float
    """Singular values at or below it say nothing."""
    singular_values: tuple[float, ...]
    """Descending; those that are left out are zero by construction."""
    growth: tuple[RankAt, ...]
    """Rank against the number of contexts, ascending; the last is of all contexts."""


@dataclass(frozen=True, kw_only=True)
class UnreachableWord:
    word: str
    index: int
    """In the vocabulary."""
    is_exact: bool
    """Whether the proof leaves no rounding error at all."""
    lead: float
    """In no state does the word lead by more than this: at most 0 for an exact proof."""
    between: tuple[str, ...]
    """The heaviest of the words whose mean it is, at most five; empty if the word is forbidden."""


@dataclass(frozen=True, kw_only=True)
class ReachabilityFacts:
    """Which words some hidden state makes the most likely; the counts add up to V."""

    states: str
    """Which hidden states were allowed, in words."""
    num_reachable: int
    """A state was found and checked, words that always tie with others included."""
    num_tied: int
    """Of the reachable, those that share vector and bias with another word."""
    num_unreachable: int
    """Proved."""
    num_undecided: int
    """Too close to call."""
    num_untried: int
    """Left without a verdict for lack of time: 0 unless `--quick`."""
    unreachable: tuple[UnreachableWord, ...]
    """All of them, in the order of the vocabulary."""
    elapsed: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class PreferredWord:
    word: str
    prob: float
    """p(v|k), over all contexts in which the component had a say."""
    share: float
    """p(k|v): how much of this word's probability is the component's."""


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """A context in which the component has one of its largest weights."""

    text: str
    """The last words of the context."""
    next_word: str
    """What follows in the text."""
    weight: float
    """The component's weight there, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class ComponentFacts:
    mean_weight: float
    """From 0 to 1."""
    largest_share: float
    """Share of the contexts in which it has the largest weight, from 0 to 1."""
    is_dead: bool
    """Its mean weight is below a hundredth of 1/K."""
    preferred: tuple[PreferredWord, ...]
    """Most characteristic first."""
    takeovers: tuple[Takeover, ...]
    """Largest weight first."""


@dataclass(frozen=True, kw_only=True)
class MixtureFacts:
    """Health of a mixture: are its components used, and do they differ?"""

    num_contexts: int
    weight_entropy: float
    """Mean over contexts of the entropy of the weights, in nats: 0 if one component always rules,
    log K if all always weigh alike."""
    use_entropy: float
    """Entropy of the mean weights, in nats: log K if all are used alike."""
    specialisation: float
    """Mutual information of component and word, given the context, in nats; 0 for components that
    all say the same."""
    pair_divergence: tuple[tuple[float, ...], ...]
    """(K, K): mean Jensen-Shannon divergence of two components, in nats, at most log 2."""
    num_dead: int
    components: tuple[ComponentFacts, ...]


@dataclass(frozen=True, kw_only=True)
class ModelAudit:
    name: str
    """As the user gave it."""
    source: str
    """"run" (of ours) or "Hugging Face"."""
    architecture: str
    """As "AWD-LSTM" or "GPT2LMHeadModel"."""
    num_parameters: int
    """A tied embedding counts once."""
    head: HeadFacts
    text: TextFacts
    rank: RankFacts
    divergence: Divergence
    """How far apart the predictions of two contexts are on average, in nats."""
    reachability: ReachabilityFacts | None
    reachability_note: str
    """Why `reachability` is None; empty if it is there."""
    mixture: MixtureFacts | None
    """None for heads with one component."""
    elapsed: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    quick: bool
    num_contexts: int
    """How many contexts were asked for; a short text may have fewer."""
    elapsed: float
    """Seconds."""
    environment: Environment
    models: tuple[ModelAudit, ...]
    """In the order in which they were named."""
