"""A backbone with a head against a plain-torch model written here, and borrowed weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.search import Method
from highrank.heads import Composed, MixtureOfSoftmaxes, MultiFacetSoftmax, Pointer, Softmax
from highrank.heads.bases.component import components_of
from highrank.heads.components.ngram import NGramComponent
from highrank.models import AWDLSTM, GatedCNN, LanguageModel
from highrank.models.weights import replaced, restored

T, B, V, K = 5, 3, 13, 4


class Plain(nn.Module):
    """MoS language model as one would write it down, with probabilities."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, 6)
        self.lstms = nn.ModuleList([nn.LSTM(6, 8), nn.LSTM(8, 7)])
        self.prior, self.latent = nn.Linear(7, K, bias=False), nn.Linear(7, K * 6)
        self.bias = nn.Parameter(torch.zeros(V))

    def forward(self, words, target, states):
        x, new_states = self.embedding(words), []
        for lstm, state in zip(self.lstms, states, strict=True):
            x, state = lstm(x, state)
            new_states.append(tuple(s.detach() for s in state))
        context = self.latent(x).tanh().view(T, B, K, 6)
        q = F.linear(context, self.embedding.weight, self.bias).softmax(-1)
        p = (self.prior(x).softmax(-1)[..., None] * q).sum(-2)
        return -p.gather(-1, target[..., None]).log().mean(), new_states


def ours():
    return LanguageModel(AWDLSTM(V, 6, (8, 7)), MixtureOfSoftmaxes(7, V, K, 6))


def copy_into(model, plain):
    plain.embedding.load_state_dict(model.backbone.embedding.state_dict())
    plain.prior.load_state_dict(model.head.prior.state_dict())
    plain.latent.load_state_dict(model.head.latent.state_dict())
    for lstm, layer in zip(plain.lstms, model.backbone.layers, strict=True):
        lstm.load_state_dict(layer.state_dict())


def test_ten_steps_have_the_losses_of_a_plain_torch_model():
    model, plain = ours(), Plain()
    copy_into(model, plain)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1.0) for m in (model, plain)]
    state, states = model.initial_state(B), [None, None]
    for _ in range(10):
        words = torch.randint(V, (T + 1, B))
        out = model(words[:-1], words[1:], state)
        loss, states = plain(words[:-1], words[1:], states)
        state = out.state
        torch.testing.assert_close(out.loss, loss, atol=1e-5, rtol=0)
        for optimizer, value in zip(optimizers, (out.loss, loss), strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()


def test_the_gradient_of_a_tied_embedding_has_both_parts():
    model = ours()
    words = torch.randint(V, (T + 1, B))
    model(words[:-1], words[1:], model.initial_state(B)).loss.backward()
    plain = Plain()
    copy_into(model, plain)
    plain(words[:-1], words[1:], [None, None])[0].backward()
    torch.testing.assert_close(model.head.weight.grad, plain.embedding.weight.grad)
    assert sum(1 for _ in model.parameters()) == 1 + 2 * 4 + 4


def test_the_state_is_detached():
    model = ours()
    words = torch.randint(V, (T + 1, B))
    state = model(words[:-1], words[1:], model.initial_state(B)).state
    assert not any(tensor.requires_grad for pair in state for tensor in pair)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="hidden_size must be the backbone's 7, got 9"):
        LanguageModel(AWDLSTM(V, 6, (8, 7)), Softmax(9, V))
    with pytest.raises(ValueError, match=r"= \(13, 7\), got \(13, 6\)"):
        LanguageModel(AWDLSTM(V, 6, (8, 7)), Softmax(7, V))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_borrowed_weights_come_back(error):
    model = ours()
    before = [p.detach().clone() for p in model.parameters()]
    try:
        with restored(model), replaced(model, [torch.zeros_like(p) for p in before]):
            assert all((p == 0).all() for p in model.parameters())
            if error:
                raise error
    except KeyboardInterrupt:
        pass
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)


def is_tied(model):
    return model.head.weight is model.backbone.embedding.weight


def test_a_tied_embedding_stays_tied_when_parameters_are_replaced():
    model = ours()
    state = model.state_dict()
    with torch.device("meta"):
        empty = ours()
    assert is_tied(empty.to_empty(device="cpu"))
    empty.load_state_dict({key: value.clone() for key, value in state.items()}, assign=True)
    assert is_tied(empty)
    torch.testing.assert_close(empty.state_dict(), state)


BESIDE = {
    "softmax": lambda: Softmax(8, V),
    "pointer": lambda: Composed(Softmax(8, V), [Pointer(8, V, num_states=4, key_size=3)]),
    "n-gram": lambda: Composed(Softmax(8, V), [NGramComponent(8, V, ngram_order=7)]),
    "facets": lambda: MultiFacetSoftmax(8, V, 2, 8, layers=(-1,), num_previous=2),
}


@pytest.mark.parametrize(("name", "length"), list(zip(BESIDE, (3, 7, 6, 5), strict=True)))
def test_a_prediction_depends_on_as_many_tokens_as_is_stated(name, length):
    torch.manual_seed(0)
    backbone = GatedCNN(V, 8, 8, num_blocks=2, kernel_size=2)
    model = LanguageModel(backbone, BESIDE[name]()).double().eval()
    tokens = torch.randint(V, (12, 1))
    for part in components_of(model):
        part.fit(
            tokens.repeat(3, 1).flatten().numpy(), tokens.flatten().bincount(minlength=V).tolist()
        )

    def last(words):
        read = model.read(words, model.initial_state(1))
        return model.head.log_prob(read.hidden, **read.past)[-1]

    reached = []
    for back in range(1, 12):
        changed = tokens.clone()
        changed[-back] = (changed[-back] + 1) % V
        if not torch.allclose(last(changed), last(tokens), rtol=0, atol=1e-12):
            reached.append(back)
    assert max(reached) == length == model.context_length
    cached = Method(cache=CacheSettings(window=5))
    assert cached.context_length(model) == length + 5
    assert Method(dynamic=DynamicSettings()).context_length(model) is None
