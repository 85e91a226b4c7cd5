"""The words of the audit's page: nothing in them depends on what was found.

T is the number of contexts, V that of words, d the size of the vector that meets the words, K the
number of components.
"""

from highrank.report.page import Link, Paragraph, Strong

MEANING = (
    "Write the log-probability of every word after every context into a matrix, one row for each "
    "context. One softmax fills it from d numbers per context, so that its rank is at most d + 2: "
    "d from the product, one from the normaliser, one from a bias if there is one. Where the "
    "language’s own matrix has a higher rank, no training makes every prediction right; but nobody "
    "knows the rank of a natural language. A rank at the bound says that the head uses all the "
    "directions it has, not that it needs more. Ranks in these sentences are the comparable ones: "
    "singular values above float32’s round-off."
)
DIVERGENCE = (
    "The divergence is the mean KL divergence between the predictions of two contexts: how much a "
    "model’s mind changes with what it has read."
)
CAUTION = Paragraph(
    (
        Strong("What it does not say. "),
        "A high numerical rank alone predicts little. Parthiban, Mao and Inkpen (“On the Softmax "
        "Bottleneck of Recurrent Language Models”, AAAI 2021) trained such models again on Penn "
        "Treebank. Without dropout on its contexts, a mixture’s rank rose from 9,979 to 9,992, and "
        "its test perplexity from 56.07 to 64.82. A head of rank 496 reached 56.80 where one of "
        "rank 5,113 reached 57.05, over eleven seeds. With as many parameters, and with hidden "
        "states as large as the contexts, both tuned, a mixture of softmaxes had 56.39±0.19 and "
        "one softmax 56.45±0.10: not a significant difference (p = 0.62). The rank also grows "
        "with the number of contexts: 8,933 from 10,000 and 9,979 from 82,000.",
    )
)
KEY_CAPTION = (
    "Matrix: the contexts × words that have the ranks below. Bound: the highest rank that the form "
    "of the head allows, – where none is known. Comparable: singular values above float32’s "
    "round-off, as the literature counts. Certified: above float64’s. Effective, ε: how many "
    "singular values carry all but ε of the sum of squares. Stable: Σσ² ÷ the largest σ². Entropy: "
    "exp of the entropy of σ ÷ Σσ. – where unknown."
)
SPECTRUM = (
    "Every rank is a question put to the singular values of the matrix: how many are above some "
    "line. The line decides, so here are the values."
)
SPECTRUM_CAPTION = (
    "Singular values of the log-probabilities, divided by the largest. Dotted, upright: the bound, "
    "behind which a value is zero by construction; such values are drawn at the lower edge."
)
RESIDUAL_CAPTION = (
    "The share of the sum of squares that is left without the first k singular values. The "
    "effective rank is where a line falls below ε."
)
GROWTH = (
    "More contexts can only raise a rank. Where a line still rises at its end, the number says as "
    "much about the amount of text as about the model."
)
GROWTH_CAPTION = "Values above float32’s round-off, of the first contexts alone."
REACHABILITY = Paragraph(
    (
        "A word whose vector is a mean of other words’ vectors never leads: in every state one of "
        "these is at least as likely (Demeter et al., ",
        Link("2020", "https://aclanthology.org/2020.acl-main.198"),
        "; Grivas et al., ",
        Link("2022", "https://aclanthology.org/2022.acl-long.456"),
        "). Greedy decoding cannot say it; sampling can. A word counts as reachable if a hidden "
        "state was found that makes it the most likely, as unreachable if there is a proof; both "
        "are checked with all rounding errors counted. That a state exists does not mean that a "
        "text leads to it.",
    )
)
UNREACHABLE_CAPTION = (
    "Between: the heaviest of the words whose mean it is. Proof: exact, or the largest lead over "
    "the others that rounding leaves open, which is far below what a model can tell apart. "
    "Forbidden: its bias is −∞."
)
MIXTURE = (
    "A mixture is worth its price if its components are used and say different things. Components "
    "count from 1. Entropies and divergences are in nats."
)
COMPONENTS_CAPTION = (
    "Weight: mean over contexts. Largest in: share of the contexts in which no other weighs more. "
    "Nearest: the component that says the most similar things, and the divergence from it."
)
PREFERRED_CAPTION = (
    "The words that set a component apart from the mixture, and its share of their probability."
)
PAIRS_CAPTION = "Mean Jensen-Shannon divergence: 0 says the same, 0.693 has no word in common."
DIFFERENCES_CAPTION = (
    "Jensen-Shannon divergence from the other components. Dashed: no word in common, 0.693."
)
TAKEOVERS_CAPTION = "Where a component has its largest weights: the end of the context, what came."
PRECISION = (
    "For the rank, log-probabilities were recomputed in float64 from the parameters and the hidden "
    "states as they are, so that only the last layer’s own form is judged. Divergence: over all "
    "ordered pairs of contexts; ± is a standard error, by a jackknife over groups of neighbouring "
    "contexts. Perplexities compare models only on the same text and the same vocabulary, and are "
    "of the tokens that follow these contexts alone."
)
REFERENCE = Paragraph(
    (
        "The argument is that of Yang, Dai, Salakhutdinov and Cohen, “Breaking the Softmax "
        "Bottleneck: A High-Rank RNN Language Model”, ICLR 2018, ",
        Link("arXiv 1711.03953", "https://arxiv.org/abs/1711.03953"),
        ". With AWD-LSTMs on the test text of Penn Treebank it reports ranks of 400 (softmax), 280 "
        "(MoC) and 9,981 (MoS), and divergences of 4.763, 4.864 and 5.284 nats.",
    )
)
QUICK = (
    " This was a quick audit: of words only a sample where all take long, and no more than there "
    "was time for."
)
