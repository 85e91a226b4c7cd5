"""Dynamic evaluation of a model that is not of this package."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from highrank.evaluation.dynamic import DynamicSettings, evaluate_dynamically, score_dynamically
from highrank.evaluation.static import Reading, score, summed
from highrank.evaluation.statistics import gradient_statistics

V, SEGMENT = 17, 5
SGD = DynamicSettings(rule="sgd", lr=0.5, decay=0.0)


def log_probs(segments):
    return torch.cat([segment.log_prob for segment in segments])


class Plain(nn.Module):
    """Not a model of this package."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(V, 6), nn.GRU(6, 8, num_layers=2, dropout=0.5)
        self.linear, self.unused = nn.Linear(8, V), nn.Parameter(torch.ones(2))

    def forward(self, words, target, state):
        hidden, state = self.gru(self.embedding(words), state)
        log_prob = self.linear(hidden).log_softmax(-1).gather(-1, target[..., None])[..., 0]
        return Reading(-log_prob.mean(), log_prob, {"state": [state]}, hidden)

    def read(self, words, target, state):
        return self(words, target, None if state is None else state["state"][0])


def test_sgd_on_a_model_of_somebody_else_is_torch_sgd(text):
    model = Plain().double()
    found = log_probs(score_dynamically(model, text, SGD, read=model.read))
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD.lr)
    data, state, want = torch.from_numpy(text)[:, None], None, []
    for i in range(0, len(data) - 1, SEGMENT):
        target = data[i + 1 : i + 1 + SEGMENT]
        hidden, state = model.gru(model.embedding(data[i : i + len(target)]), state)
        state = state.detach()
        losses = F.cross_entropy(model.linear(hidden)[:, 0], target[:, 0], reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        want.append(-losses.detach())
    torch.testing.assert_close(found, torch.cat(want), rtol=0, atol=1e-10)


def test_rms_works_on_a_frozen_model_of_somebody_else_without_gradients_around(train, text):
    model = Plain().requires_grad_(False)
    with torch.no_grad():
        statistics = gradient_statistics(model, train, batch_size=2, read=model.read)
        settings = DynamicSettings(lr=1e-3, decay=0.0)
        found = evaluate_dynamically(model, text, settings, statistics, read=model.read).nats
        segments = score_dynamically(model, text, settings, statistics, read=model.read)
        for _ in segments:
            assert not torch.is_grad_enabled()
        static = summed(score(model, text, read=model.read)).nats
    assert found != static and math.isfinite(found)
    assert (statistics.rms["unused"] == 0).all()
    assert not any(p.requires_grad for p in model.parameters())
