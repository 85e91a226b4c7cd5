"""The words of the demo's page: nothing in them depends on who wins.

d is the size of the vector that meets the words, K the number of components.
"""

from highrank.reports.page import Code, Link, Paragraph

TITLE = "What one softmax cannot say"
LEAD = (
    "Three output layers meet two small languages whose every probability is known: what the "
    "softmax bottleneck costs, what a mixture of softmaxes wins, and when a larger softmax would "
    "have done."
)
BOTTLENECK = (
    "Take a sheet with one row for every context and one column for every word, and write into "
    "each cell the logarithm of the probability that this word comes next. This matrix is the "
    "language. The last layer of a language model fills it in from d numbers per context: each "
    "cell is the product of the context’s vector with the word’s vector, plus a bias of the word, "
    "minus a normaliser of the context. Such a matrix has rank at most d + 2, whatever the network "
    "before it has understood: d from the product, one from the bias, one from the normaliser. If "
    "the language has a higher rank, no training and no amount of text makes the model exact. "
    "That is the softmax bottleneck. What it costs is measured here as excess: by how much the "
    "model’s cross-entropy lies above the language’s own entropy, which no model can go below. An "
    "excess of 0.1 nats per token is a perplexity 11 % above the best possible."
)
MIXTURES = (
    "A mixture of softmaxes (MoS) gives each context K vectors and K weights, makes a distribution "
    "of each vector, and averages the probabilities. The logarithm of a sum is not a sum of "
    "logarithms, so the bound d + 2 does not hold. A mixture of contexts (MoC) has the same "
    "parameters, but averages the K vectors before a single softmax: the average is one vector of "
    "d numbers, and the bound is back. MoC is the control: what it gains over a softmax, the added "
    "parameters have gained. At the same d a mixture is several times as large as a softmax, so "
    "there are two fair questions, and they may have different answers: which head is better at "
    "equal d, and which at equal parameters, where the softmax can afford a larger d."
)
DESCRIPTIONS = {
    "factorised": (
        "Its logits are products of vectors of {before} numbers, so that log P* has rank {rank} by "
        "construction: a softmax with d = {before} says it exactly, and no smaller one does. "
        "It is the bottleneck in its purest form, and it suits a larger softmax: from d = {before} "
        "on, one is all that is needed."
    ),
    "senses": (
        "Each context blends a few sharp distributions out of many, as a word of several meanings "
        "blends what may follow each of them. Here the probabilities are sums, not their "
        "logarithms: log P* has rank {rank}, and {most} is the most that its size allows. It "
        "suits a mixture as the other language suits a softmax: three softmaxes with d = 8 say it "
        "exactly."
    ),
}
METHOD = (
    "Both languages are tables of probabilities, so the cross-entropy is computed over all "
    "contexts and words, each weighted by how often it occurs: no text is sampled, and no number "
    "on this page has sampling noise. Each context has free vectors of its own, as the best "
    "imaginable network would provide, so that only the last layer is left to fail. An excess is "
    "what the optimiser reached; the best that a head can do may be lower."
)
LIMITS = (
    " The languages show a mechanism, not its weight in natural language, whose true distribution "
    "nobody knows."
)
QUICK = (" This was a quick run; without ", Code("--quick"), " it is more thorough.")
REFERENCE = Paragraph(
    (
        "The argument is that of Yang, Dai, Salakhutdinov and Cohen, “Breaking the Softmax "
        "Bottleneck: A High-Rank RNN Language Model”, ICLR 2018, ",
        Link("arXiv 1711.03953", "https://arxiv.org/abs/1711.03953"),
        ".",
    )
)
