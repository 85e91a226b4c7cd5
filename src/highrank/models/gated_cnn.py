"""Gated convolutions: Dauphin, Fan, Auli and Grangier (2017), arXiv 1612.08083.

    embedding → locked dropout → [1 → k → 1, each (x * W + b) ⊗ σ(x * V + c), → +] × L

Bottleneck blocks with weight normalisation, causal: a block's convolution sees the present token
and the k - 1 before it. Their inputs are the state, zeros at the beginning of a text, so that
windows do not change an evaluation and generation costs one column a token.

T time, B sequences, E embedding size, D hidden size, N bottleneck size, L blocks, k kernel size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.models.backbone import Backbone, BackboneOutput, like_parameters, projection
from highrank.ops.dropout import locked_dropout

MOST_LAYERS = 1000


class GatedConvolution(nn.Module):
    """A causal convolution over time, gated, with weights w = g · v / |v| for each channel.

    Args:
        input_size, output_size: channels.
        kernel_size: k; the last k - 1 inputs are the state.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        kernel_size: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.kernel_size = input_size, kernel_size
        shape = (2 * output_size, input_size * kernel_size)
        self.direction = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.scale = nn.Parameter(torch.empty(shape[0], device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(shape[0], device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Outputs are smaller than inputs: where gates are open, nothing may grow with depth."""
        nn.init.normal_(self.direction)
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.bias)

    @property
    def weight(self) -> Tensor:
        """(2 · output_size, input_size · k), of the values and then of the gates."""
        return F.normalize(self.direction, dim=1) * self.scale[:, None]

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (T, B, output_size) and the last k - 1 inputs, for inputs (T, B, input_size)."""
        if self.kernel_size > 1:
            x = torch.cat((past, x))  # (k - 1 + T, B, input_size)
            past = x[len(x) - self.kernel_size + 1 :]
            x = x.unfold(0, self.kernel_size, 1).flatten(2)  # (T, B, input_size · k)
        return F.glu(F.linear(x, self.weight, self.bias), -1), past


class Block(nn.Module):
    """Three gated convolutions, of which the middle one looks back, added to their input.

    Args:
        hidden_size: D.
        bottleneck_size: N.
        kernel_size: k.
    """

    def __init__(
        self,
        hidden_size: int,
        bottleneck_size: int,
        kernel_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.narrow = GatedConvolution(hidden_size, bottleneck_size, 1, device, dtype)
        self.middle = GatedConvolution(bottleneck_size, bottleneck_size, kernel_size, device, dtype)
        self.widen = GatedConvolution(bottleneck_size, hidden_size, 1, device, dtype)

    def forward(self, x: Tensor, past: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """Outputs (T, B, D) and the past afterwards; p is the locked dropout of what is added."""
        found, _ = self.narrow(x, past)
        found, past = self.middle(found, past)
        found, _ = self.widen(found, past)
        return x + locked_dropout(found, p, shared_dim=0), past


class GatedCNN(Backbone):
    """Blocks of gated convolutions over token embeddings, with locked dropout as in AWD-LSTM.

    Args:
        vocab_size: V.
        embedding_size: E; if it is not D, a linear layer follows the embeddings.
        hidden_size: D.
        num_blocks: L.
        bottleneck_size: N, of the convolutions that look back; 0 is D / 2.
        kernel_size: k; a prediction can depend on L · (k - 1) + 1 tokens.
        embedding_dropout: fraction of the tokens that are zero in a window.
        input_dropout: on the embeddings, locked.
        hidden_dropout: on what each block adds, locked.
        output_dropout: on the last block's output, locked.
        embedding_range: embeddings start uniform in ± this.
        activation_penalty: α of activation regularisation (AR).
        temporal_penalty: β of temporal activation regularisation (TAR).
    """

    title = "gated CNN"

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        hidden_size: int = 256,
        num_blocks: int = 6,
        *,
        bottleneck_size: int = 0,
        kernel_size: int = 4,
        embedding_dropout: float = 0.0,
        input_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        embedding_range: float = 0.1,
        activation_penalty: float = 0.0,
        temporal_penalty: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= num_blocks <= MOST_LAYERS:
            raise ValueError(f"num_blocks must be between 1 and {MOST_LAYERS:,}, got {num_blocks}")
        least = {"hidden_size": (2, hidden_size), "bottleneck_size": (0, bottleneck_size)}
        for name, (smallest, value) in (least | {"kernel_size": (2, kernel_size)}).items():
            if value < smallest:
                raise ValueError(f"{name} must be at least {smallest}, got {value}")
        self.layer_sizes = (embedding_size, *[hidden_size] * num_blocks)
        self.context_length = num_blocks * (kernel_size - 1) + 1
        self.embedding_range = embedding_range
        self.embedding_dropout, self.input_dropout = embedding_dropout, input_dropout
        self.hidden_dropout, self.output_dropout = hidden_dropout, output_dropout
        self.activation_penalty, self.temporal_penalty = activation_penalty, temporal_penalty
        self.check_numbers()
        self.embedding: nn.Embedding | AdaptiveEmbedding = nn.Embedding(
            vocab_size, embedding_size, device=device, dtype=dtype
        )
        self.projection = projection(embedding_size, hidden_size, device=device, dtype=dtype)
        size = bottleneck_size or hidden_size // 2
        self.blocks = nn.ModuleList(
            Block(hidden_size, size, kernel_size, device, dtype) for _ in range(num_blocks)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.reset_embedding()
        for module in self.modules():
            if isinstance(module, nn.Linear | GatedConvolution):
                module.reset_parameters()

    @property
    def hidden_norm(self) -> float:
        """That of the embeddings, after their projection; blocks add little."""
        size = self.layer_sizes[-1]
        scale = 1.0 if isinstance(self.projection, nn.Identity) else 1 / math.sqrt(3)
        return scale * math.sqrt(size / 3) * self.embedding_range

    def initial_state(self, batch_size: int) -> list[Tensor]:
        """The last inputs of each block's convolution: zeros, (k - 1, B, N)."""
        like = like_parameters(self)
        middles = [block.middle for block in self.blocks if isinstance(block, Block)]
        return [
            torch.zeros(layer.kernel_size - 1, batch_size, layer.input_size, **like)
            for layer in middles
        ]

    def forward(self, tokens: Tensor, state: list[Tensor]) -> BackboneOutput:
        """Read tokens (T, B), starting in a state."""
        embedded = self.embed(tokens)  # (T, B, E)
        x, layers, after = self.projection(embedded), [embedded], []
        keep = 1.0 if self.training else 0.0
        for block, past in zip(self.blocks, state, strict=True):
            x, past = block(x, past, keep * self.hidden_dropout)
            layers.append(x)
            after.append(past)
        layers[-1] = locked_dropout(x, keep * self.output_dropout, shared_dim=0)
        return BackboneOutput(layers[-1], after, tuple(layers), x)
