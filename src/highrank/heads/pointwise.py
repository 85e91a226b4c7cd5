"""Mixtures of softmaxes over mapped logits: sigsoftmax, its generalisation, PLIF and softcap.

    p = Σ_k π_k · softmax(φ(W h_k + b)),  π = softmax(P hidden),  h_k = tanh(L_k hidden + c_k)

An increasing, nonlinear φ bends every entry of the matrix of logits: even one softmax then has no
bound on the rank of log p. The maps are sigsoftmax (and with K > 1 MoSS) of Kanai et al. (2018),
arXiv 1805.10829; its generalisation of Parthiban et al. (2021), AAAI 35; PLIF, a learned piecewise
linear map of Ganea et al. (2019), arXiv 1902.08077; and the softcap of Gemma 2.
"""

from typing import Unpack

import torch.nn.functional as F

from highrank.heads.bases.logits import StreamedLoss, one_each
from highrank.heads.bases.mixture import PriorMixture, PriorOptions
from highrank.ops.logit_map import LogitMap, Pieces, PiecewiseLinear, parse_logit_map
from highrank.ops.precision import at_least_float32
from highrank.ops.streamed_cross_entropy import Block, Logits


class Pointwise(PriorMixture, StreamedLoss):
    """K softmaxes of mapped logits, weighted by the hidden state.

    Args:
        logit_map: "sigsoftmax", "gss:CENTRE,SLOPE" (the authors' best are gss:-1.5,2.5 on Penn
            Treebank and gss:-1.5,3 on WikiText-2), "softcap:CAP" or "plif:SEGMENTS,LIMIT".
        options: and sizes, as of `PriorMixture`.
    """

    title = "Pointwise"
    default_components = 1
    logit_map: LogitMap

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        logit_map: str = "sigsoftmax",
        **options: Unpack[PriorOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, num_components, embedding_size, **options)
        # The map's own constructor draws its values, after those of the head.
        self.logit_map = parse_logit_map(logit_map)
        if isinstance(self.logit_map, PiecewiseLinear):
            self.logit_map.to(self.weight)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if isinstance(self.logit_map, PiecewiseLinear):
            self.logit_map.reset_parameters()

    def logits(self) -> Logits:
        """The logits of a learned map."""
        learned, V = self.logit_map, self.vocab_size
        assert isinstance(learned, PiecewiseLinear)
        slopes = F.softplus(learned.score.to(at_least_float32(self.weight.dtype)))
        return Logits(
            one_each,
            [Block(k, slice(0, V), slice(None)) for k in range(self.num_components)],
            self.weight,
            self.bias,
            num_softmaxes=self.num_components,
            # The segments of logits are 64-bit integers.
            num_tables=5,
            pieces=Pieces(slopes, learned.limit),
        )
