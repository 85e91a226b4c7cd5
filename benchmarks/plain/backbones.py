"""What torch and transformers have instead of our backbones: (T, B, D) to hidden states.

T time, B sequences, D hidden size, L layers.
"""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

HEADS, KERNEL = 4, 4


class Hidden(NamedTuple):
    hidden: Tensor


class Embedded(nn.Module):
    """A module after an embedding of V tokens."""

    def __init__(self, V: int, D: int, body: nn.Module) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(V, D), body

    def forward(self, tokens: Tensor, state: Any) -> Hidden:
        return Hidden(self.body(self.embedding(tokens)))


class PlainLSTM(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class PlainEncoder(nn.ModuleList):
    """Layers of torch with a causal mask."""

    def __init__(self, D: int, L: int) -> None:
        options: dict[str, Any] = {"dropout": 0.0, "norm_first": True}
        layers = [nn.TransformerEncoderLayer(D, HEADS, 4 * D, **options) for _ in range(L)]
        super().__init__((*layers, nn.LayerNorm(D)))

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        *layers, norm = self
        for layer in layers:
            x = layer(x, src_mask=mask, is_causal=True)
        found: Tensor = norm(x)
        return found


class PlainLlama(nn.Module):
    def __init__(self, D: int, L: int) -> None:
        from transformers import LlamaConfig, LlamaModel

        super().__init__()
        config = LlamaConfig(
            vocab_size=1,
            hidden_size=D,
            num_hidden_layers=L,
            num_attention_heads=HEADS,
            intermediate_size=8 * -(-D // 3),
            use_cache=False,
        )
        self.model = LlamaModel(config)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(inputs_embeds=x.transpose(0, 1)).last_hidden_state
        return found


class PlainConvolutions(nn.ModuleList):
    """Blocks of torch's gated convolutions with weight normalisation."""

    def __init__(self, D: int, L: int) -> None:
        norm, sizes = nn.utils.parametrizations.weight_norm, ((1, 2, 1), (2, 2, KERNEL), (2, 1, 1))
        super().__init__(
            nn.ModuleList(norm(nn.Conv1d(D // a, 2 * D // b, k)) for a, b, k in sizes)
            for _ in range(L)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(1, 2, 0)  # (B, D, T)
        for block in self:
            found = x
            for conv in block:  # type: ignore[attr-defined]
                found = F.glu(conv(F.pad(found, (conv.kernel_size[0] - 1, 0))), 1)
            x = x + found
        return x
