"""The seams of a model: any backbone with any state, heads that look back or at lower layers."""

import torch
from torch import nn

from highrank.heads import Head, Softmax
from highrank.models import AWDLSTM, LanguageModel
from highrank.models.backbone import Backbone, BackboneOutput

T, B, V, E, D = 5, 4, 13, 6, 7


class GRUBackbone(Backbone):
    """Not an LSTM: its state is a dictionary."""

    title, embedding_range = "GRU", 0.1

    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(V, E), nn.GRU(E, D)
        self.layer_sizes = (E, D)

    def initial_state(self, batch_size):
        zeros = self.embedding.weight.new_zeros(1, batch_size, D)
        return {"h": zeros, "position": torch.zeros(1, batch_size)}

    def forward(self, tokens, state):
        x = self.embedding(tokens)
        hidden, h = self.gru(x, state["h"])
        state = {"h": h, "position": state["position"] + len(tokens)}
        return BackboneOutput(hidden, state, (x, hidden))


class Copying(Head):
    """Looks back: half of the probability is on the token that followed this one the last time."""

    is_stateful = True

    def __init__(self, hidden_size, vocab_size):
        super().__init__(hidden_size, vocab_size)
        self.weight = nn.Parameter(0.1 * torch.randn(vocab_size, hidden_size))

    def initial_state(self, batch_size):
        # The follower of each token, and the token before the window; -1 where there is none.
        return torch.full((self.vocab_size, batch_size), -1), torch.full((1, batch_size), -1)

    def _followers(self, tokens, state):
        """For each token the one that followed it before (T, B), and the state afterwards."""
        table, last = (part.clone() for part in state)
        found = []
        streams = torch.arange(tokens.shape[1])
        for row in tokens:
            known = last[0] >= 0
            table[last[0][known], streams[known]] = row[known]
            found.append(table[row, streams])
            last = row[None]
        return torch.stack(found), (table, last)

    def features(self, hidden, tokens, state):
        return hidden, self._followers(tokens, state)[0]

    def log_prob_from(self, features):
        hidden, follower = features
        p = (hidden @ self.weight.T).softmax(-1)
        is_known = (follower >= 0)[..., None]
        copied = nn.functional.one_hot(follower.clamp(min=0), self.vocab_size)
        return torch.where(is_known, (p + copied) / 2, p).log()

    def advance(self, hidden, tokens, state):
        return self._followers(tokens, state)[1]


def words(length=T, batch=B):
    return torch.randint(V, (length, batch))


def test_any_backbone_and_any_state_train():
    model = LanguageModel(GRUBackbone(), Softmax(D, V), tied=False)
    out = model(words(), words(), model.initial_state(B))
    out.loss.backward()
    assert (out.state["position"] == T).all() and not out.state["h"].requires_grad
    assert model.backbone.gru.weight_hh_l0.grad.any()


def test_a_window_read_in_two_parts_is_one_window():
    for head in (Softmax(D, V), Copying(D, V)):
        model = LanguageModel(GRUBackbone(), head, tied=False)
        tokens, target = words(9), words(9)
        whole = model(tokens, target, model.initial_state(B), reduction="none")
        first = model(tokens[:4], target[:4], model.initial_state(B), reduction="none")
        second = model(tokens[4:], target[4:], first.state, reduction="none")
        parts = torch.cat((first.output, second.output))
        torch.testing.assert_close(parts, whole.output)


def test_a_head_that_looks_back_sees_past_tokens_only():
    model = LanguageModel(GRUBackbone(), Copying(D, V), tied=False)
    tokens, target = words(9), words(9)
    changed = tokens.clone()
    changed[6:] = (changed[6:] + 1) % V
    before, after = (
        model(t, target, model.initial_state(B), reduction="none").output for t in (tokens, changed)
    )
    torch.testing.assert_close(before[:6], after[:6])
    assert not torch.equal(before[6:], after[6:])


def test_decay_is_on_matrices_only():
    model = LanguageModel(GRUBackbone(), Softmax(D, V), tied=False)
    matrices, vectors = model.parameter_groups()
    assert all(p.dim() > 1 for p in matrices["params"]) and "weight_decay" not in matrices
    assert all(p.dim() == 1 for p in vectors["params"]) and vectors["weight_decay"] == 0
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(model.parameters()))


class TwoLayers(Softmax):
    """Sees the last two layers side by side, as DOC's components do."""

    layers = (-2, -1)


def test_a_head_gets_the_layers_that_it_asks_for():
    backbone = AWDLSTM(V, E, (8, D))
    model = LanguageModel(backbone, TwoLayers(8 + D, V), tied=False).eval()
    tokens, target = words(), words()
    out = backbone(tokens, backbone.initial_state(B))
    want = model.head(torch.cat(out.layers[-2:], -1), target).loss
    torch.testing.assert_close(model(tokens, target, model.initial_state(B)).loss, want)
    assert [layer.shape[-1] for layer in out.layers] == list(backbone.layer_sizes) == [E, 8, D]
