"""AWD-LSTM: Merity, Keskar and Socher (2018), arXiv 1708.02182, as Yang et al. (2018) use it.

    embedding, tokens dropped → locked dropout → LSTM → locked dropout → … → LSTM → locked dropout

Each LSTM's recurrent matrix has weight-drop. Training adds the activation penalties AR and TAR of
Merity, McCann and Socher (2017), arXiv 1708.01009. T time, B sequences, E embedding size, H layer
size, V vocabulary.
"""

import torch
from torch import Tensor, nn

from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.models.backbone import (
    Backbone,
    BackboneOutput,
    ParameterGroup,
    like_parameters,
)
from highrank.ops.dropout import dropout_mask, locked_dropout

MOST_LAYERS = 100
# (h, c) of each layer, each (1, B, H).
LSTMState = list[tuple[Tensor, Tensor]]


class WeightDropLSTM(nn.LSTM):
    """One LSTM layer whose recurrent matrix is dropped out element by element.

    The mask is drawn once per call, so it is the same for all time steps of a window.

    Args:
        weight_dropout: fraction of the recurrent weights (4H, H) that is zero in training.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, device=device, dtype=dtype)
        self.weight_dropout = weight_dropout

    def run(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `forward`, with the dropout: outputs (T, B, H) and the new state, each (1, B, H)."""
        if not self.training or self.weight_dropout == 0:
            return self(x, state)  # type: ignore[no-any-return]
        recurrent = self.get_parameter("weight_hh_l0")
        mask = dropout_mask(recurrent.shape, self.weight_dropout, recurrent)
        dropped = {"weight_hh_l0": recurrent * mask}
        return torch.func.functional_call(self, dropped, (x, state))  # type: ignore[no-any-return]


class AWDLSTM(Backbone):
    """LSTM layers over token embeddings, with the dropouts of the paper.

    Args:
        vocab_size: V.
        embedding_size: E.
        hidden_sizes: H of each layer; the last is the hidden size D that the head sees.
        embedding_dropout: fraction of the tokens that are zero in a window (dropoute).
        input_dropout: on the embeddings, locked (dropouti).
        hidden_dropout: between the layers, locked (dropouth).
        output_dropout: on the last layer, locked (dropout).
        weight_dropout: on each recurrent matrix (wdrop).
        embedding_range: embeddings start uniform in ± this. The paper's 0.1 takes a thousand steps
            to get going.
        activation_penalty: α of activation regularisation (AR).
        temporal_penalty: β of temporal activation regularisation (TAR).
    """

    title = "AWD-LSTM"

    @property
    def hidden_bound(self) -> float:
        """1: tanh times a sigmoid; dropout is off where the bound matters."""
        return 1.0

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        hidden_sizes: tuple[int, ...],
        *,
        embedding_dropout: float = 0.0,
        input_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        embedding_range: float = 0.1,
        activation_penalty: float = 0.0,
        temporal_penalty: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= len(hidden_sizes) <= MOST_LAYERS:
            found = len(hidden_sizes)
            raise ValueError(f"hidden_sizes must be 1 to {MOST_LAYERS} sizes, got {found}")
        if min(hidden_sizes) < 1:
            raise ValueError(f"hidden_sizes must be at least 1, got {min(hidden_sizes)}")
        self.layer_sizes, self.embedding_range = (embedding_size, *hidden_sizes), embedding_range
        self.activation_penalty, self.temporal_penalty = activation_penalty, temporal_penalty
        self.embedding_dropout, self.input_dropout = embedding_dropout, input_dropout
        self.hidden_dropout, self.output_dropout = hidden_dropout, output_dropout
        self.weight_dropout = weight_dropout
        self.check_numbers()
        self.embedding: nn.Embedding | AdaptiveEmbedding = nn.Embedding(
            vocab_size, embedding_size, device=device, dtype=dtype
        )
        self.layers = nn.ModuleList(
            WeightDropLSTM(before, after, weight_dropout, device=device, dtype=dtype)
            for before, after in zip(self.layer_sizes, hidden_sizes, strict=False)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings uniform, LSTMs as torch does (no forget-gate offset)."""
        self.reset_embedding()
        for layer in self.layers:
            assert isinstance(layer, WeightDropLSTM)
            layer.reset_parameters()

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros."""
        like = like_parameters(self)
        sizes = [layer.hidden_size for layer in self.layers if isinstance(layer, WeightDropLSTM)]
        zeros = [torch.zeros(1, batch_size, size, **like) for size in sizes]
        return [(zero, zero.clone()) for zero in zeros]

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        """One group: weight decay on every parameter, as the paper's code has it."""
        return [{"params": list(model.parameters())}]

    def forward(self, tokens: Tensor, state: LSTMState) -> BackboneOutput:
        """Read tokens (T, B), starting in a state."""
        keep = 1.0 if self.training else 0.0
        x = raw = self.embed(tokens)  # (T, B, E)
        new_state: LSTMState = []
        layers = [x]
        for index, (layer, layer_state) in enumerate(zip(self.layers, state, strict=True)):
            assert isinstance(layer, WeightDropLSTM)
            raw, layer_state = layer.run(x, layer_state)  # (T, B, H)
            new_state.append(layer_state)
            last = index == len(self.layers) - 1
            rate = self.output_dropout if last else self.hidden_dropout
            x = locked_dropout(raw, keep * rate, shared_dim=0)
            layers.append(x)
        return BackboneOutput(x, new_state, tuple(layers), raw)
