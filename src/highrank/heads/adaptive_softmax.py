"""Adaptive softmax: Grave, Joulin, Cissé, Grangier and Jégou (2017), arXiv 1609.04309.

    p(frequent token) = softmax(W₀ h₀ + b₀)[token]
    p(token of tail i) = softmax(W₀ h₀ + b₀)[class i] · softmax(W_i h_i + b_i)[token]

The first softmax is over the R frequent tokens and one class per tail, h_i are projections of the
hidden state. A tail is computed only where the target is in it, so that the loss costs about a
third of a softmax on text. `nn.AdaptiveLogSoftmaxWithLoss` is the case embedding_size=None.
"""

from typing import Unpack

from highrank.heads.bases.adaptive import AdaptiveHead, AdaptiveOptions


class AdaptiveSoftmax(AdaptiveHead):
    """One softmax over the frequent tokens, and one over each tail of rarer tokens.

    Args:
        embedding_size: E, for contexts activation(Linear(hidden)), one for each softmax; None takes
            the hidden state itself for the frequent tokens and Linear(hidden) for the tails.
        options: and sizes, as of `AdaptiveHead`.
    """

    title = "Adaptive softmax"

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int | None,
        **options: Unpack[AdaptiveOptions],
    ) -> None:
        super().__init__(
            hidden_size, vocab_size, 1, embedding_size, mix_first_tail=False, **options
        )
        self.reset_parameters()
