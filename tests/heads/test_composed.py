"""Heads with further components: any base, two ways of training, names, heads from outside.

The oracle is dense and in float64: p = g_0 p_base + Σ g_j q_j for every token, by autograd.
"""

import copy
import json
import pickle
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from contract import PLAIN, B, D, E, T, V, gradients, make_head, make_window

from highrank.build import build_model
from highrank.config import HeadConfig, ModelConfig, RunConfig
from highrank.heads import (
    HEADS,
    Component,
    Composed,
    Constant,
    MixtureOfSoftmaxes,
    Pointer,
    Softmax,
    head_class,
)
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.run.configuration import config_from_json, config_to_json
from highrank.signatures import import_kind

EXACT = {"rtol": 1e-10, "atol": 1e-10}


class Oracle(Component):
    """Knows the next token, as good as that: the tokens are what comes next."""

    name, num_features, start_weight = "oracle", 2, 0.5
    is_stateful, learns_alone = True, True

    def inputs(self, hidden, tokens, state, position=None):
        return tokens if position is None else torch.where(position < 0, tokens, position)

    def log_prob_of(self, inputs, target):
        return torch.where(inputs == target, 0.99, 0.01 / (V - 1)).log().double()[..., None]

    def log_prob(self, inputs, log_gate):
        every = torch.arange(V).expand(*inputs.shape, V)
        return self.log_prob_of(inputs[..., None], every).squeeze(-1) + log_gate

    def gate_features(self, inputs):
        return torch.stack((inputs / V, inputs % 2), -1).double()


def parts(head):
    """A pointer and topics of the head's sizes."""
    sizes = head.hidden_size, V
    return [Pointer(*sizes, num_states=4, key_size=3), Constant(*sizes, num_topics=2)]


def randomised(head):
    for parameter in head.double().parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return head


def dense(head, features):
    """log p of every token (T, B, V) by the definition."""
    gate = torch.nn.functional.pad(features.gate, (1, 0)).softmax(-1)
    prob = gate[..., :1] * head.base.log_prob_from(features.base).exp()
    pointed, every = features.inputs[0], torch.arange(V)
    copied = (pointed.candidate[..., None] == every) * pointed.log_attention.exp()[..., None]
    prob = prob + gate[..., 1:2] * copied.sum(-2)
    constant = head.components[1]
    tables = torch.cat((constant.log_frequency[None], constant.topic)).softmax(-1)  # (J, V)
    return (prob + gate[..., 2:] @ tables).log()


@pytest.mark.parametrize("kind", [*HEADS, PLAIN])
def test_any_head_takes_components_and_is_the_dense_mixture_with_all_gradients(kind):
    base = make_head(kind)
    head = randomised(Composed(base, parts(base)))
    hidden, target, past = make_window(head)
    target[2, 0] = -100
    want = dense(head, head.features(hidden, **past))
    torch.testing.assert_close(head.log_prob(hidden, **past), want, **EXACT)
    loss = head(hidden, target, **past).loss
    want = torch.nn.functional.nll_loss(want.flatten(0, 1), target.flatten())
    torch.testing.assert_close(loss, want, **EXACT)
    both = [gradients(x, head, hidden) for x in (loss, want)]
    torch.testing.assert_close(*both, **EXACT)


def test_a_joint_head_in_a_joint_head_is_one_mixture(generic):
    base = MixtureOfSoftmaxes(D, V, 2, E)
    pointer, constant = parts(base)
    head = generic(Composed(Composed(base, [pointer]), [constant]))
    hidden, target, past = make_window(head)
    want = head.log_prob(hidden, **past).gather(-1, target[..., None])
    output, loss = head(hidden, target, **past)
    torch.testing.assert_close((output, loss), (want.squeeze(-1), -want.mean()), **EXACT)
    both = [gradients(x, head, hidden) for x in (loss, -want.mean())]
    torch.testing.assert_close(*both, **EXACT)


WEIGHTS = {"token_weight": torch.linspace(0, 2, T * B).double().view(T, B)}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, WEIGHTS], ids=["plain", "weights"])
@pytest.mark.parametrize("kind", ["mos", "adaptive-mos", "partition"])
def test_own_losses_train_the_parts_as_if_each_were_alone(kind, options, reduction):
    base = make_head(kind)
    head = randomised(Composed(base, parts(base), "own"))
    hidden, target, past = make_window(head)
    target[2, 0] = -100
    found = head(hidden, target, reduction, **past, **options)
    joint = copy.deepcopy(head)
    joint.objective = "joint"
    want = joint(hidden, target, reduction, **past, **options)
    torch.testing.assert_close(tuple(found), tuple(want), **EXACT)
    upstream = torch.linspace(-1, 2, found.loss.numel()).double().reshape(found.loss.shape)
    got = gradients((upstream * found.loss).sum(), head, hidden)
    # The same by three losses, one after the other.
    features = head.features(hidden, **past)
    known = target.clamp(min=0)
    log_q = [c.log_prob_of(i, known) for c, i in zip(head.parts, features.inputs, strict=True)]
    log_gate, log_p = head.log_gate(features), head.base.log_prob_from(features.base)
    log_p = log_p.gather(-1, known[..., None])
    inner = log_gate[..., 2:].detach().log_softmax(-1)
    pointed = log_q[0].squeeze(-1)
    alone = -log_p.squeeze(-1) - (inner + log_q[1]).logsumexp(-1)
    alone = alone - pointed.masked_fill(pointed.isneginf(), 0.0)
    mixed = -(log_gate + torch.cat((log_p, *log_q), -1).detach()).logsumexp(-1)
    weight = options.get("token_weight", torch.ones(T, B).double()) * (target >= 0)
    each = weight * (mixed + alone)
    total = {"none": each, "sum": each.sum(), "mean": each.sum() / weight.sum()}[reduction]
    torch.testing.assert_close(got, gradients((upstream * total).sum(), head, hidden), **EXACT)


def test_a_component_that_knows_everything_starves_the_base_jointly_and_not_by_own_losses():
    base = make_head("adaptive-mos")
    hidden, target, _ = make_window(base)
    past = {"tokens": target, "state": ((), ())}
    alone = gradients(base(hidden, target).loss, base, hidden)
    found = {}
    for objective in ("joint", "own"):
        head = Composed(base, [Oracle(D, V)], objective).double()
        assert head.log_prob(hidden, **past).exp().sum(-1).allclose(torch.ones(T, B).double())
        loss = head(hidden, target, **past).loss
        assert torch.autograd.grad(loss, head.gate.weight, retain_graph=True)[0][:, D:].any()
        found[objective] = gradients(loss, base, hidden)
    torch.testing.assert_close(found["own"], alone, rtol=0, atol=0)
    sizes = [max(g.abs().max() for g in grads) for grads in (found["joint"], alone)]
    assert sizes[0] < 0.2 * sizes[1]


def test_components_that_learn_alone_stand_around_those_that_learn_with_the_base(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_here", module := ModuleType("made_here"))
    module.Oracle = Oracle
    monkeypatch.setitem(head_class.__globals__["COMPONENTS"], "oracle", "made_here:Oracle")
    kind = head_class("mos+oracle+pointer")
    head = kind(D, V, num_components=2, embedding_size=E, num_states=4)
    assert head.objective == "own" and [one.name for one in head.parts] == ["oracle"]
    assert head.base.objective == "joint" and [c.name for c in head.base.parts] == ["pointer"]
    hidden, target, past = make_window(randomised(head))
    past["position"] = torch.full_like(target, -1)
    output = head(hidden, target, **past).output
    want = head.log_prob(hidden, **past).gather(-1, target[..., None]).squeeze(-1)
    torch.testing.assert_close(output, want, **EXACT)
    again = Composed(MixtureOfSoftmaxes(D, V, 2, E), [Oracle(D, V), Pointer(D, V, num_states=4)])
    assert {n: x.shape for n, x in again.state_dict().items()} == {
        n: x.shape for n, x in head.state_dict().items()
    }
    assert (again.objective, again.base.objective) == ("own", "joint")
    joint = kind(D, V, num_components=2, embedding_size=E, objective="joint")
    assert joint.objective == "joint" and len(joint.parts) == 2


@pytest.mark.parametrize("kind", ["mos+pointer", "adaptive-softmax+pointer"])
def test_the_share_of_a_pointer_is_its_part_of_the_sum(kind, generic):
    options = {"embedding_size": 4, "num_states": 6, "key_size": 4}
    options |= {"num_components": 2} if kind == "mos+pointer" else {}
    head = generic(head_class(kind)(5, 9, **options), 0.5)
    hidden, tokens = torch.randn(7, 2, 5).double(), torch.arange(14).reshape(7, 2) % 4
    target = tokens.roll(-1, 0)
    found = head.shares(hidden, target, tokens=tokens)  # (7, 2, 2)
    features = head.features(hidden, tokens=tokens)
    (log_attention, candidate), gate = features.inputs[0], features.gate[..., 0].sigmoid()
    copied = gate * (log_attention.exp() * (candidate == target[..., None])).sum(-1)
    p = head.log_prob(hidden, tokens=tokens).exp().gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(found[..., 1], copied / p)
    torch.testing.assert_close(found.sum(-1), torch.ones(7, 2, dtype=torch.float64))
    assert 0 < found[..., 1].max() < 1 and (found[0, :, 1] == 0).all()
    assert head.beside == ("pointer",)


def test_shares_are_bayes_rule_for_all_that_is_mixed(generic):
    base = MixtureOfSoftmaxes(D, V, 2, E)
    pointer, constant = parts(base)
    head = generic(Composed(Composed(base, [pointer]), [constant], "own"))
    hidden, target, past = make_window(head)
    found = head.shares(hidden, target, **past)
    assert head.beside == ("pointer", "constant 1", "constant 2", "constant 3")
    inner, index = past["state"][0], target[..., None]
    gate = torch.nn.functional.pad(head.features(hidden, **past).gate, (1, 0)).softmax(-1)
    joined = head.base.log_prob(hidden, tokens=past["tokens"], state=inner).gather(-1, index).exp()
    prob = head.log_prob(hidden, **past).gather(-1, index).exp()
    got = found[..., :2].sum(-1, keepdim=True)
    torch.testing.assert_close(got, gate[..., :1] * joined / prob, **EXACT)
    own = constant.log_constants()[:, target].movedim(0, -1).exp()
    torch.testing.assert_close(found[..., 2:], gate[..., 1:] * own / prob, **EXACT)


def test_wrong_parts_are_named():
    base = Softmax(D, V)
    for components, objective, message in (
        ([], "joint", "components must be some of the base's sizes, got none"),
        ([Constant(D, V + 1)], "joint", r"the base's sizes, got \[\(6, 12\)\]"),
        ([Constant(D, V)], "both", "objective must be auto, joint or own, got 'both'"),
        (
            [Constant(D, V, constant_weight=1.5)],
            "own",
            "weights must be above 0 and",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            Composed(base, components, objective)
    own = Composed(base, [Constant(D, V)], "own")
    with pytest.raises(ValueError, match="must be own around a base of objective own, got joint"):
        Composed(own, [Constant(D, V)], "joint")
    assert Composed(own, [Constant(D, V)]).objective == "own"
    with pytest.raises(ValueError, match="target must be ids, unsmoothed, for objective own"):
        own(torch.randn(3, D), torch.arange(3), label_smoothing=0.1)
    with pytest.raises(ValueError, match="each component once, got 'mos.pointer.pointer'"):
        head_class("mos+pointer+pointer")
    with pytest.raises(ValueError, match="components of head.kind must be one of constant, pointe"):
        head_class("mos+softmax")


def test_a_kind_can_be_pickled_and_copied():
    head = make_head("adaptive-softmax+pointer")
    hidden, _, past = make_window(head)
    want = head.log_prob(hidden, **past)
    for twin in (pickle.loads(pickle.dumps(head)), copy.deepcopy(head)):
        assert type(twin) is type(head) and type(twin).__name__ == "adaptive-softmax+pointer"
        assert torch.equal(twin.log_prob(hidden, **past), want)


MODEL = ModelConfig(embedding_size=6, options={"hidden_sizes": (8, 7)})
CONFIG = RunConfig(corpus="none", model=MODEL, head=HeadConfig(dropout=0.0, num_components=2))


OUTSIDE = "made_outside:Doubled"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    text = "from highrank.heads import MixtureOfSoftmaxes\nclass Doubled(MixtureOfSoftmaxes): ...\n"
    (tmp_path / "made_outside.py").write_text(text + "number = 3\nclass Other: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("made_outside", None)


@pytest.mark.usefixtures("outside")
def test_a_head_from_outside_is_imported_by_the_user_and_by_no_file():
    config = replace(CONFIG, head=replace(CONFIG.head, kind=f"{OUTSIDE}+pointer"))
    stored = json.loads(json.dumps(config_to_json(config)))
    with pytest.raises(ValueError, match="must be imported before, .* with --import made_outside"):
        config_from_json(stored)
    assert "made_outside" not in sys.modules
    import_kind(OUTSIDE)
    head = build_model(config_from_json(stored), V).head
    assert type(head.core).__name__ == "Doubled" and head.is_stateful
    with pytest.raises(ValueError, match="head.kind must be a class, got made_outside:number"):
        head_class("made_outside:number")
    with pytest.raises(ValueError, match="head.kind must be a head, and each"):
        head_class("made_outside:Other")
    with pytest.raises(ValueError, match="an importable module, got No module named 'nowhere'"):
        import_kind("nowhere:Head")


def test_further_terms_of_a_caller_must_be_a_mixture(hidden, target):
    """Zeros as log-weights would be a second whole distribution, and a loss below 0."""
    zeros = torch.zeros(7, 1).double()
    with pytest.raises(TypeError, match="options must be of .*, got \\['extra'\\]"):
        MixtureOfSoftmaxes(6, 11, 2, 4).double()(hidden, target, extra=(zeros, zeros))
    given = hidden[:, None], zeros, torch.randn(11, 6).double(), target
    with pytest.raises(ValueError, match="weights must sum to one, those of extra included, got 2"):
        mixture_cross_entropy(*given, extra=(zeros, zeros))
    half = zeros - torch.tensor(2.0).log()
    found = mixture_cross_entropy(given[0], half, *given[2:], extra=(half, zeros))
    assert found > 0
