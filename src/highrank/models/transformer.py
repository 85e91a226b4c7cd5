"""A Transformer decoder with a bounded memory of the windows before.

    embedding · scale → locked dropout → [norm → attention → +, norm → feed-forward → +] × L → norm

Pre-norm, with rotary positions (Su et al. 2021, arXiv 2104.09864), RMSNorm and SwiGLU as in Llama,
or LayerNorm and ReLU. In each layer a token sees itself and the `memory` tokens before it, whatever
the window: keys and values of the last `memory` tokens are the state. So the windows of an
evaluation do not change its number, and a token costs the same however long the text is. No
gradient crosses windows, as in Transformer-XL (Dai et al. 2019, arXiv 1901.02860).

T time, B sequences, E embedding size, D hidden size, L layers, H attention heads, M size of the
memory, S = T and those of the M that any of the sequences has.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.models.backbone import Backbone, BackboneOutput, like_parameters, projection
from highrank.ops.dropout import locked_dropout

MOST_LAYERS = 1000
EPSILON, ROTARY_BASE = 1e-6, 10_000.0
# Keys, not yet rotated, and values: each (M, B, D), the latest last.
Memory = tuple[Tensor, Tensor]


class State(NamedTuple):
    seen: Tensor
    """(1, B), how many of the M tokens of each sequence there are, int64."""
    layers: list[Memory]


class Attention(nn.Module):
    """Causal attention to the present token and the M before it.

    Args:
        hidden_size: D.
        num_heads: H.
        dropout: on the attention's weights.
        tensors: device and dtype.
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float, **tensors: Any) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.inputs = nn.Linear(hidden_size, 3 * hidden_size, bias=False, **tensors)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False, **tensors)

    def forward(
        self, x: Tensor, state: Memory, rotary: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Memory]:
        """Outputs (T, B, D) and the memory afterwards.

        Args:
            rotary: (2, S, D / H), cosine and sine of the positions.
            mask: (T, S) or (B, 1, T, S), whether a token sees another; None if each sees itself
                and all before.
        """
        query, key, value = self.inputs(x).chunk(3, -1)
        key, value = torch.cat((state[0], key)), torch.cat((state[1], value))  # (M + T, B, D)
        used = slice(len(key) - rotary.shape[1], None)
        out = F.scaled_dot_product_attention(
            rotate(self._by_head(query), rotary[:, -len(x) :]),
            rotate(self._by_head(key[used]), rotary),
            self._by_head(value[used]),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None and len(x) > 1,
        )  # (B, H, T, D / H)
        kept = slice(len(x), None)
        return self.output(out.permute(2, 0, 1, 3).flatten(2)), (key[kept], value[kept])

    def _by_head(self, x: Tensor) -> Tensor:
        """(T, B, D) as (B, H, T, D / H)."""
        return x.view(*x.shape[:2], self.num_heads, -1).permute(1, 2, 0, 3)


class FeedForward(nn.Module):
    """Two linear layers: with SwiGLU between them and no biases, or with ReLU and biases.

    Args:
        dropout: between the two layers, locked.
        tensors: device and dtype.
    """

    def __init__(
        self, hidden_size: int, inner_size: int, kind: str, dropout: float, **tensors: Any
    ) -> None:
        super().__init__()
        self.is_gated, self.dropout = kind == "swiglu", dropout
        bias, width = not self.is_gated, 2 * inner_size if self.is_gated else inner_size
        self.inputs = nn.Linear(hidden_size, width, bias=bias, **tensors)
        self.output = nn.Linear(inner_size, hidden_size, bias=bias, **tensors)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        if self.is_gated:
            gate, x = x.chunk(2, -1)
            x = F.silu(gate) * x
        else:
            x = F.relu(x)
        out: Tensor = self.output(locked_dropout(x, self.dropout if self.training else 0.0, 0))
        return out


class Layer(nn.Module):
    """Attention and a feed-forward part, each after a norm and added to its input."""

    def __init__(
        self,
        attention: Attention,
        feedforward: FeedForward,
        norms: tuple[nn.Module, nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention, self.feedforward, self.dropout = attention, feedforward, dropout
        self.attention_norm, self.feedforward_norm = norms

    def forward(
        self, x: Tensor, state: Memory, rotary: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Memory]:
        p = self.dropout if self.training else 0.0
        found, state = self.attention(self.attention_norm(x), state, rotary, mask)
        x = x + locked_dropout(found, p, shared_dim=0)
        x = x + locked_dropout(self.feedforward(self.feedforward_norm(x)), p, shared_dim=0)
        return x, state


class Transformer(Backbone):
    """Transformer layers over token embeddings, with locked dropout as in AWD-LSTM.

    Args:
        vocab_size: V.
        embedding_size: E; if it is not D, a linear layer follows the embeddings.
        hidden_size: D.
        num_layers: L.
        num_heads: H, a divisor of D.
        feedforward_size: size between the two layers of a feed-forward part; 0 is the multiple of
            8 from 8/3 · D on, with which SwiGLU has the weights of ReLU with 4 · D.
        memory: tokens before a token that each layer lets it see (M); a prediction can depend on
            L · M + 1 tokens.
        feedforward: "swiglu" without biases, or "relu" with biases.
        norm: "rms" or "layer".
        embedding_dropout: fraction of the tokens that are zero in a window.
        input_dropout: on the embeddings, locked.
        attention_dropout: on the weights of the attention.
        feedforward_dropout: between the two layers of a feed-forward part, locked.
        hidden_dropout: on what each part adds, locked.
        output_dropout: after the last norm, locked.
        embedding_range: embeddings start uniform in ± this.
        embedding_scale: embeddings are multiplied by this where the network reads them; √D in
            Vaswani et al. (2017), arXiv 1706.03762.
        embedding_lr_scale: factor of the embeddings' learning rate.
        activation_penalty: α of activation regularisation (AR).
        temporal_penalty: β of temporal activation regularisation (TAR).
    """

    title = "Transformer"

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        hidden_size: int = 256,
        num_layers: int = 4,
        num_heads: int = 4,
        *,
        feedforward_size: int = 0,
        memory: int = 128,
        feedforward: Literal["swiglu", "relu"] = "swiglu",
        norm: Literal["rms", "layer"] = "rms",
        embedding_dropout: float = 0.0,
        input_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feedforward_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        embedding_range: float = 0.1,
        embedding_scale: float = 1.0,
        embedding_lr_scale: float = 1.0,
        activation_penalty: float = 0.0,
        temporal_penalty: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(hidden_size, num_layers, num_heads, feedforward_size, memory)
        self.layer_sizes = (embedding_size, *[hidden_size] * num_layers)
        self.context_length = num_layers * memory + 1
        self.num_heads, self.memory, self.embedding_range = num_heads, memory, embedding_range
        self.embedding_scale, self.embedding_lr_scale = embedding_scale, embedding_lr_scale
        self.embedding_dropout, self.input_dropout = embedding_dropout, input_dropout
        self.attention_dropout = attention_dropout
        self.feedforward_dropout = feedforward_dropout
        self.hidden_dropout, self.output_dropout = hidden_dropout, output_dropout
        self.activation_penalty, self.temporal_penalty = activation_penalty, temporal_penalty
        self.check_numbers()
        tensors: dict[str, Any] = {"device": device, "dtype": dtype}
        inner_size = feedforward_size or 8 * math.ceil(hidden_size / 3)

        def make_norm() -> nn.Module:
            kind = nn.RMSNorm if norm == "rms" else nn.LayerNorm
            return kind(hidden_size, eps=EPSILON, **tensors)

        def make_layer() -> Layer:
            return Layer(
                Attention(hidden_size, num_heads, attention_dropout, **tensors),
                FeedForward(hidden_size, inner_size, feedforward, feedforward_dropout, **tensors),
                (make_norm(), make_norm()),
                hidden_dropout,
            )

        self.embedding: nn.Embedding | AdaptiveEmbedding = nn.Embedding(
            vocab_size, embedding_size, **tensors
        )
        self.projection = projection(embedding_size, hidden_size, **tensors)
        self.layers = nn.ModuleList(make_layer() for _ in range(num_layers))
        self.norm = make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings uniform; matrices normal, smaller where layers add up; norms at 1."""
        self.reset_embedding()
        depth = math.sqrt(2 * len(self.layers))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                std = module.in_features**-0.5 / (depth if name.endswith("output") else 1.0)
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
                module.reset_parameters()

    @property
    def hidden_bound(self) -> float:
        """√D times the largest weight of the last norm, plus its largest bias."""
        size, weight = self.layer_sizes[-1], self.norm.get_parameter("weight")
        bound = math.sqrt(size) * weight.detach().abs().max().item()
        bias = getattr(self.norm, "bias", None)
        return bound if bias is None else bound + bias.detach().abs().max().item()

    @property
    def hidden_norm(self) -> float:
        """√D, after the last norm."""
        return math.sqrt(self.layer_sizes[-1])

    def initial_state(self, batch_size: int) -> State:
        """Nothing is remembered."""
        like = like_parameters(self)
        zeros = torch.zeros(self.memory, batch_size, self.layer_sizes[-1], **like)
        seen = torch.zeros(1, batch_size, dtype=torch.int64, device=zeros.device)
        return State(seen, [(zeros, zeros) for _ in self.layers])

    def forward(self, tokens: Tensor, state: State) -> BackboneOutput:
        """Read tokens (T, B), starting in a state."""
        embedded = self.embed(tokens)  # (T, B, E)
        x = self.embedding_scale * self.projection(embedded)
        mask = band(len(tokens), state.seen, self.memory)
        num_seen = int(state.seen.max())
        size = self.layer_sizes[-1] // self.num_heads
        rotary = rotations(num_seen + len(tokens), size, x)
        is_empty = self._is_empty(embedded, state.seen)
        layers, after = [embedded], []
        for layer, before in zip(self.layers, state.layers, strict=True):
            x, memory = layer(x, before, rotary, mask)
            x = x if is_empty is None else x.masked_fill(is_empty, 0.0)
            layers.append(x)
            after.append(memory)
        new_state = State((state.seen + len(tokens)).clamp(max=self.memory), after)
        raw = self.norm(x)
        p = self.output_dropout if self.training else 0.0
        layers[-1] = locked_dropout(raw, p, shared_dim=0)
        return BackboneOutput(layers[-1], new_state, tuple(layers), raw)

    def _is_empty(self, embedded: Tensor, seen: Tensor) -> Tensor | None:
        """Where a text begins with dropped tokens only, (T, B, 1); None if none were dropped.

        There is nothing to see there: every layer would normalise zeros, whose gradient is larger
        by 1 / √ε in each, and overflows in deep networks.
        """
        if not (self.training and self.embedding_dropout):
            return None
        is_kept = (embedded != 0).any(-1)  # (T, B)
        return ~((is_kept.cumsum(0) > 0) | (seen > 0))[..., None]


def _check_sizes(
    hidden_size: int, num_layers: int, num_heads: int, feedforward_size: int, memory: int
) -> None:
    if not 1 <= num_layers <= MOST_LAYERS:
        raise ValueError(f"num_layers must be between 1 and {MOST_LAYERS:,}, got {num_layers}")
    if not 1 <= num_heads <= hidden_size or hidden_size % (2 * num_heads):
        raise ValueError(
            f"num_heads must divide hidden_size = {hidden_size} into even parts, got {num_heads}"
        )
    if feedforward_size < 0:
        raise ValueError(f"feedforward_size must be at least 0, got {feedforward_size}")
    if memory < 1:
        raise ValueError(f"memory must be at least 1, got {memory}")


def band(length: int, seen: Tensor, memory: int) -> Tensor | None:
    """Which of the remembered and present tokens each token sees; None if all before it.

    (T, S), or (B, 1, T, S) where sequences remember different numbers of tokens.
    """
    most = int(seen.max())
    is_even = bool((seen == most).all())
    if is_even and (length == 1 or (most == 0 and length <= memory + 1)):
        return None
    present = torch.arange(most, most + length, device=seen.device)[:, None]
    other = torch.arange(most + length, device=seen.device)
    visible = (other <= present) & (other >= present - memory)  # (T, S)
    return visible if is_even else visible & (other >= most - seen[0, :, None, None, None])


def rotations(length: int, size: int, like: Tensor) -> Tensor:
    """Cosine and sine of each position's angles, (2, length, size), in Llama's order."""
    exponent = torch.arange(0, size, 2, device=like.device, dtype=torch.float64) / size
    position = torch.arange(length, device=like.device, dtype=torch.float64)
    angle = (position[:, None] * ROTARY_BASE**-exponent).repeat(1, 2)
    return torch.stack((angle.cos(), angle.sin())).to(like.dtype)


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn pairs of numbers of queries or keys (…, T, size) by their positions' angles."""
    first, second = x.chunk(2, -1)
    return x * rotary[0] + torch.cat((-second, first), -1) * rotary[1]
