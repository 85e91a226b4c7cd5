"""Options of `forward`, compilers, export, resizing: heads in other people's training code."""

import inspect
import re

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.export import Dim, export

from highrank.heads import HEADS, Head, MixtureOfSoftmaxes, head_class
from highrank.heads.base import ForwardOptions
from highrank.ops.logit_map import Softcap
from highrank.ops.loss import LossOptions
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss

D, V = 6, 11


class Plain(Head):
    """A softmax that states its log-probabilities only."""

    def __init__(self):
        super().__init__(D, V)
        self.weight = nn.Parameter(torch.randn(V, D, dtype=torch.float64))

    def log_prob_from(self, features):
        return (features @ self.weight.T).log_softmax(-1)


OPTIONS = {
    "class weight": {"class_weight": torch.linspace(0.1, 2, V, dtype=torch.float64)},
    "token weight": {"token_weight": torch.linspace(0, 2, 7, dtype=torch.float64)},
    "smoothing": {"label_smoothing": 0.1},
    "chunks": {"chunk_bytes": 100},
    "shift": {"shift": 2},
}
LOGIT_OPTIONS = {
    "scale": {"logit_scale": 0.5},
    "z-loss": {"z_loss": 0.1},
    "softcap": {"logit_map": Softcap(2.0)},
    "backend": {"backend": "chunked"},
}


@pytest.mark.parametrize("options", {**OPTIONS, **LOGIT_OPTIONS}.values(), ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_options_of_a_mixture_are_those_of_the_loss(head, hidden, target, options, reduction):
    target[2] = -100
    log_weight, context = head.softmaxes(hidden)
    want = mixture_loss(
        context, log_weight, head.weight, target, bias=head.bias, reduction=reduction, **options
    )
    output, loss = head(hidden, target, reduction, **options)
    torch.testing.assert_close(loss, want.loss)
    torch.testing.assert_close(output, -want.token_loss)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_head_that_is_no_mixture_has_the_same_options(hidden, target, options, reduction):
    head = Plain()
    target[2] = -100
    want = mixture_loss(
        hidden[:, None],
        hidden.new_zeros(7, 1),
        head.weight,
        target,
        reduction=reduction,
        backend="reference",
        **options,
    )
    output, loss = head(hidden, target, reduction, **options)
    torch.testing.assert_close(loss, want.loss)
    torch.testing.assert_close(output, -want.token_loss)
    both = [torch.autograd.grad(x.sum(), head.weight)[0] for x in (loss, want.loss)]
    torch.testing.assert_close(*both)


def test_soft_targets_train_any_head(hidden):
    head = Plain()
    ids = torch.arange(21).reshape(7, 3) % V
    probability = torch.rand(7, 3, dtype=torch.float64).softmax(-1)
    loss = head(hidden, (ids, probability)).loss
    want = -(probability * head.log_prob(hidden).gather(-1, ids)).sum(-1).mean()
    torch.testing.assert_close(loss, want)


@pytest.mark.parametrize("options", [*LOGIT_OPTIONS.values(), {"also": ("lse",)}], ids=str)
def test_what_a_head_has_no_meaning_for_is_refused_by_name(hidden, target, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be left out for Plain, got one"):
        Plain()(hidden, target, **options)


def test_options_without_a_target_are_refused(head, hidden):
    with pytest.raises(ValueError, match="target must be given with label_smoothing, got None"):
        head(hidden, label_smoothing=0.1)


def test_by_products_come_as_a_third_result(head, hidden, target):
    also = ("prediction", "entropy", "log_weight")
    _, loss, found = head(hidden, target, also=also)
    torch.testing.assert_close(loss, head(hidden, target).loss)
    assert torch.equal(found["prediction"], head.predict(hidden))
    log_p = head.log_prob(hidden)
    torch.testing.assert_close(found["entropy"], -(log_p.exp() * log_p).sum(-1))
    torch.testing.assert_close(found["log_weight"], head.softmaxes(hidden).log_weight)


class Scored(nn.Module):
    """The loss, or the log-probabilities, as a module that can be exported."""

    def __init__(self, head, with_loss):
        super().__init__()
        self.head, self.with_loss = head, with_loss

    def forward(self, hidden, target):
        return self.head(hidden, target).loss if self.with_loss else self.head.log_prob(hidden)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_loss", [True, False], ids=["loss", "log_prob"])
def test_a_head_is_exported_for_any_batch(head, hidden, target, with_loss):
    model = Scored(head, with_loss).eval()
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


@pytest.mark.parametrize("vocab_size", [8, 15])
def test_a_resized_head_keeps_its_first_tokens(head, hidden, vocab_size):
    before = head.weight.detach().clone()
    head.resize(vocab_size)
    kept = min(V, vocab_size)
    assert torch.equal(head.weight[:kept], before[:kept])
    assert head.log_prob(hidden).shape == (7, vocab_size)
    assert head.vocab_size == vocab_size and isinstance(head.weight, nn.Parameter)


def named(function, *options):
    """The arguments of a function, and those that its docstring explains."""
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    given = inspect.signature(function).parameters.values()
    names = {p.name for p in given if p.kind not in kinds} | {n for t in options for n in t}
    lines = re.findall(r"^ +((?:\w+, )*\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    found = {name for line in lines for name in line.split(", ")}
    return names - {"self", "device", "dtype"}, found


@pytest.mark.parametrize("kind", HEADS)
def test_help_explains_every_argument_of_a_head(kind):
    names, found = named(head_class(kind))
    assert names <= found


def test_help_explains_every_argument_of_the_loss():
    for function in (mixture_cross_entropy, MixtureOfSoftmaxes.forward):
        options = LossOptions if function is mixture_cross_entropy else ForwardOptions
        names, found = named(function, options.__annotations__)
        assert names <= found
    names, found = named(MixtureOfSoftmaxes.sample)
    assert names <= found
