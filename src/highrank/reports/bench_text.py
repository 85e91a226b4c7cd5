"""The words of the benchmark's page: nothing in them depends on who wins."""

TITLE = "What the loss of a mixture costs"
LEAD = (
    "Time and memory of one forward and backward pass through the loss of a mixture of softmaxes: "
    "this package, the usual ways, and the limit that the matrix multiply sets. All ratios are of "
    "numbers from one run."
)
CONTESTANTS = {
    "limit": (
        "the three matrix multiplies that any way needs, alone, on the chunks of fused and into "
        "memory that is there already: no softmax, no loss."
    ),
    "fused": (
        "this package: gradients are made in the forward pass, a chunk of tokens at a time, so "
        "that three multiplies suffice."
    ),
    "chunked": (
        "this package: logits are computed again in the backward pass, a fourth multiply, for any "
        "upstream gradient."
    ),
    "composition": (
        "PyTorch’s own chunked linear_cross_entropy for each component of each token, and a "
        "logsumexp over the components; with the chunk that a search in the same run found best."
    ),
    "original": (
        "as the official code of the paper: a table of N × K × V probabilities, mixed, plus 1e-8, "
        "then the logarithm. The epsilon makes its loss a little different."
    ),
    "log-space": (
        "the exact table: N × K × V log-probabilities, a logsumexp over the components, then the "
        "targets."
    ),
    "softmax": (
        "a single softmax, computed as fused is, whose contexts are so large that a model with it "
        "has as many parameters as one with the mixture. It says less: it is what to pay if a "
        "mixture is not needed."
    ),
}
METHOD = (
    "Contestants take turns, in an order that changes each round; the best of {rounds} rounds "
    "counts, after a warm-up. Before that, all ways were checked to yield the same loss, on the "
    "inputs that were timed, within one part in ten thousand. Memory is the peak of a fresh "
    "process for each contestant, above what it held with its inputs ready: gradients count, "
    "inputs do not. Inputs are random and in float32; gradients go to contexts, weights of the "
    "components, output embedding and bias."
)
QUICK = " This was a quick run, with a tenth of the tokens and few rounds; its numbers are rough."
