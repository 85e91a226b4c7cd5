"""Mixtures of softmaxes: contexts, masks, options of the loss, responsibilities, maps of logits."""

import inspect
import re

import pytest
import torch
import torch.nn.functional as F
from contract import make_head, make_window
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.export import Dim, export

from highrank.heads import Head, LowRankMixture, MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.heads.bases.mixture import log_responsibility
from highrank.heads.bases.output import ForwardOptions
from highrank.ops.logit_map import Softcap
from highrank.ops.loss import LossOptions
from highrank.ops.mixture_cross_entropy import BACKENDS, mixture_cross_entropy, mixture_loss

D, V, E = 6, 11, 4
HEADS = {
    "softmax": lambda **options: Softmax(D, V, **options),
    "softmax over a context": lambda **options: Softmax(D, V, E, **options),
    "moc": lambda **options: MixtureOfContexts(D, V, 3, E, **options),
    "mos": lambda **options: MixtureOfSoftmaxes(D, V, 3, E, **options),
}
OPTIONS = {
    "scale": {"logit_scale": 0.5},
    "z-loss": {"z_loss": 0.1},
    "softcap": {"logit_map": Softcap(2.0)},
    "backend": {"backend": "chunked"},
}


@pytest.fixture(params=HEADS)
def build(request):
    return HEADS[request.param]


@pytest.fixture
def head(build, generic):
    return generic(build())


def test_log_prob_is_the_mixture_of_its_softmaxes(head, hidden):
    log_weight, context = head.softmaxes(hidden)
    prob = (context @ head.weight.T + head.bias).softmax(-1)
    want = (log_weight.exp()[..., None] * prob).sum(-2).log()
    torch.testing.assert_close(head.log_prob(hidden), want)
    torch.testing.assert_close(log_weight.exp().sum(-1), torch.ones(7).double())


def test_parameters_start_as_in_the_papers_code(build):
    head = build()
    assert 0.09 < head.weight.abs().max() <= 0.1
    assert head.weight.min() < 0 < head.weight.max()
    assert (head.bias == 0).all()
    for layer in head.children():
        bound = D**-0.5  # nn.Linear: 1/√D
        assert 0.7 * bound < layer.weight.abs().max() <= bound


def test_each_sequence_and_component_has_a_mask_that_keeps_half_and_doubles_it(build):
    head = build(activation="identity", dropout=0.5)
    if head.latent is not None:
        nn.init.zeros_(head.latent.weight)
        nn.init.ones_(head.latent.bias)
    mask = torch.cat([head.mixture(torch.ones(5, 4, D)).context for _ in range(20)], -1)
    assert mask.unique().tolist() == [0, 2]
    assert (mask == mask[:1]).all()
    assert len(mask[0].flatten(0, 1).unique(dim=0)) == 4 * head.num_components
    rows = torch.cat([head.mixture(torch.ones(4, D)).context for _ in range(20)], -1)
    assert len(rows.flatten(0, 1).unique(dim=0)) == 4 * head.num_components


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_options_of_a_mixture_are_those_of_the_loss(head, hidden, target, options, reduction):
    target[2] = -100
    log_weight, context = head.softmaxes(hidden)
    options = {"bias": head.bias, "reduction": reduction, **options}
    want = mixture_loss(context, log_weight, head.weight, target, **options)
    del options["bias"]
    output, loss = head(hidden, target, **options)
    torch.testing.assert_close((output, loss), (-want.token_loss, want.loss))


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"also": ("lse",)}], ids=str)
@pytest.mark.parametrize("name", ["plain", "partition", "adaptive-softmax"])
def test_what_a_head_has_no_meaning_for_is_refused_by_name(name, options):
    head = make_head(name)
    hidden, target, _ = make_window(head)
    (option,) = options
    with pytest.raises(ValueError, match=f"{option} must be left out for .*, got one"):
        head(hidden, target, **options)


def test_by_products_come_as_a_third_result(head, hidden, target):
    also = ("prediction", "entropy", "log_weight")
    _, loss, found = head(hidden, target, also=also)
    torch.testing.assert_close(loss, head(hidden, target).loss)
    assert torch.equal(found["prediction"], head.predict(hidden))
    log_p = head.log_prob(hidden)
    torch.testing.assert_close(found["entropy"], -(log_p.exp() * log_p).sum(-1))
    torch.testing.assert_close(found["log_weight"], head.softmaxes(hidden).log_weight)


@pytest.mark.parametrize("name", ["mos", "mos+constant", "mos+pointer", "adaptive-mos"])
def test_training_goes_through_the_fused_backend(name, monkeypatch):
    taken, fused = [], BACKENDS["fused"]
    monkeypatch.setitem(BACKENDS, "fused", lambda *args: taken.append("fused") or fused(*args))
    head = make_head(name)
    hidden, target, past = make_window(head)
    head(hidden, target, **past).loss.backward()
    # An adaptive head has a loss of its tail, too.
    assert taken == ["fused"] * (2 if name == "adaptive-mos" else 1)
    assert all(p.grad is not None for p in head.parameters())


def test_training_moves_a_tied_embedding_by_the_sum_of_both_gradients(head, target):
    embedding = nn.Embedding(V, head.embedding_size, _weight=head.weight.detach().clone())
    projection = torch.randn(head.embedding_size, D).double()

    def backward():
        head(embedding(target) @ projection, target).loss.backward()

    backward()
    both = head.weight.grad + embedding.weight.grad
    head.tie(embedding.weight)
    embedding.zero_grad()
    backward()
    before = embedding.weight.detach().clone()
    torch.optim.SGD(nn.ModuleList([embedding, head]).parameters(), lr=1.0).step()
    torch.testing.assert_close(before - embedding.weight, both)
    assert torch.equal(head.weight, embedding.weight) and both.any()


class Scored(nn.Module):
    """The loss, or the log-probabilities, as a module that can be exported."""

    def __init__(self, head, with_loss):
        super().__init__()
        self.head, self.with_loss = head, with_loss

    def forward(self, hidden, target):
        return self.head(hidden, target).loss if self.with_loss else self.head.log_prob(hidden)


# The compiler sets off torch's warnings against its own internals.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_loss", [True, False], ids=["loss", "log_prob"])
@pytest.mark.parametrize("kind", ["softmax", "mos"])
def test_a_head_is_exported_for_any_batch(kind, hidden, target, with_loss, generic):
    model = Scored(generic(HEADS[kind]()), with_loss).eval()
    batch = Dim("batch", min=2)
    exported = export(model, (hidden, target), dynamic_shapes=({0: batch}, {0: batch})).module()
    for size in (3, 7):
        given = hidden[:size], target[:size]
        torch.testing.assert_close(exported(*given), model(*given))


@pytest.mark.filterwarnings("ignore")
def test_one_graph_serves_training_and_any_batch(head, hidden, target):
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(head, backend=counter, fullgraph=True, dynamic=True)
    for size in (4, 5, 7):
        loss = compiled(hidden[:size], target[:size]).loss
        torch.testing.assert_close(loss, head(hidden[:size], target[:size]).loss)
    assert counter.frame_count == 1


def test_repr_says_what_was_asked_for():
    assert repr(Softmax(6, 11, bias=False)) == (
        "Softmax(hidden_size=6, vocab_size=11, embedding_size=6, bias=False)"
    )
    text = repr(MixtureOfSoftmaxes(6, 11, 3, 4, activation="identity", dropout=0.2))
    assert (
        "hidden_size=6, vocab_size=11, num_components=3, embedding_size=4, dropout=0.2, "
        "activation='identity'" in text
    )
    assert "(prior): Linear(in_features=6, out_features=3, bias=False)" in text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"vocab_size": -1}, "vocab_size must be at least 1, got -1"),
        ({"num_components": 0}, "num_components must be at least 1, got 0"),
        ({"embedding_size": 0}, "embedding_size must be at least 1, got 0"),
        ({"activation": "relu"}, r"activation must be one of \['tanh', 'identity'\], got 'relu'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    sizes = {"hidden_size": 6, "vocab_size": 11, "num_components": 3, "embedding_size": 4}
    with pytest.raises(ValueError, match=f"^{message}$"):
        MixtureOfSoftmaxes(**(sizes | options))


def test_help_names_every_option_of_the_loss():
    for function, options in ((mixture_cross_entropy, LossOptions), (Head.forward, ForwardOptions)):
        names = {*inspect.signature(function).parameters, *options.__annotations__}
        assert names - {"self", "options"} <= set(re.findall(r"\w+", inspect.getdoc(function)))


def test_responsibilities_follow_bayes_rule(generic):
    head = generic(MixtureOfSoftmaxes(6, 11, 3, 4))
    hidden, target = torch.randn(5, 2, 6).double(), torch.randint(11, (5, 2))
    log_weight, context = head.mixture(hidden)
    q = F.linear(context, head.weight, head.bias).softmax(-1)  # (5, 2, 3, 11)
    joint = log_weight.exp() * q.gather(-1, target[..., None, None].expand(5, 2, 3, 1))[..., 0]
    want = joint / joint.sum(-1, keepdim=True)
    torch.testing.assert_close(log_responsibility(head, hidden, target).exp(), want)
    # A token that no component can predict says nothing about them.
    head.bias.data[2] = -torch.inf
    found = log_responsibility(head, hidden[0, :1], torch.tensor([2]))
    torch.testing.assert_close(found, head.mixture(hidden[0, :1]).log_weight)


def test_one_softmax_is_responsible_for_everything():
    hidden, target = torch.randn(7, 6), torch.randint(11, (7,))
    for head in (Softmax(6, 11), MixtureOfContexts(6, 11, 3, 4)):
        assert torch.equal(log_responsibility(head, hidden, target), torch.zeros(7, 1))


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (5, 2, 1)])
def test_responsibilities_need_a_token_for_each_state(shape):
    head = MixtureOfSoftmaxes(6, 11, 3, 4)
    with pytest.raises(ValueError, match=r"target must be \(5, 2\), got"):
        log_responsibility(head, torch.randn(5, 2, 6), torch.zeros(shape, dtype=torch.int64))
    for token in (-100, 11):
        with pytest.raises(ValueError, match=f"target must be in 0 … 10 .* got {token}"):
            log_responsibility(head, torch.randn(1, 6), torch.tensor([token]))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Softmax(6, 11),
        lambda: MixtureOfSoftmaxes(6, 11, 3, 4),
        lambda: LowRankMixture(6, 11, 3, None, rank=2),
    ],
)
def test_every_mixture_takes_a_map_of_its_logits(build, generic, hidden, target):
    """The formula by brute force, for log-probabilities, the loss and all gradients."""
    head = generic(build())
    head.logit_map = Softcap(1.5)
    log_weight, context = head.softmaxes(hidden)
    capped = 1.5 * (F.linear(context, head.weight, head.bias) / 1.5).tanh()  # (N, K, V)
    want = (log_weight[..., None] + capped.log_softmax(-1)).logsumexp(-2)  # (N, V)
    torch.testing.assert_close(head.log_prob(hidden), want)
    assert head.rank_bound is None
    losses = head(hidden, target).loss, F.nll_loss(want, target)
    got, want = (torch.autograd.grad(loss, list(head.parameters())) for loss in losses)
    torch.testing.assert_close(got, want)
