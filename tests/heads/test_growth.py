"""A mixture grown from one component: the same predictions, free to specialise."""

import pytest
import torch

from highrank.heads import (
    HEADS,
    AdaptiveMixtureOfSoftmaxes,
    ConstantComponents,
    LowRankMixture,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    Pointer,
    Pointwise,
    SharedTailMixtureOfSoftmaxes,
    Softmax,
    SparseMixtureOfSoftmaxes,
    head_class,
)
from highrank.heads.growth import LARGEST_NOISE, NUM_TRIALS, can_grow, grown

D, V, E = 6, 11, 4
ONE = {
    "mos": lambda: MixtureOfSoftmaxes(D, V, 1, E),
    "moc": lambda: MixtureOfContexts(D, V, 1, E),
    "sparse-mos": lambda: SparseMixtureOfSoftmaxes(D, V, 1, E, num_active=2),
    "constant": lambda: ConstantComponents(D, V, 1, E, num_topics=2),
    "pointer": lambda: Pointer(D, V, 1, E, num_states=4, key_size=3),
    "low-rank-mos": lambda: LowRankMixture(D, V, 1, E, rank=2),
    "pointwise": lambda: Pointwise(D, V, 1, E, logit_map="plif:9,4"),
    "adaptive-mos": lambda: AdaptiveMixtureOfSoftmaxes(
        D, V, 1, E, frequent=4, cutoffs=(8,), div_value=2, mix_first_tail=True
    ),
    "shared-tail-mos": lambda: SharedTailMixtureOfSoftmaxes(D, V, 1, E, frequent=4),
}


@pytest.fixture(params=ONE)
def one(request, generic):
    """A head with one component, and a window of states and tokens for it."""
    head = generic(ONE[request.param]()).eval()
    hidden, tokens = torch.randn(20, 3, D).double(), torch.randint(V, (21, 3))
    past = {"tokens": tokens[:-1], "state": head.initial_state(3)} if head.is_stateful else {}
    return head, (hidden, tokens[1:]), past


def test_every_mixture_can_grow_that_can_have_one_component():
    assert {kind for kind in HEADS if can_grow(head_class(kind))} == set(ONE)


def test_without_noise_no_probability_changes(one, monkeypatch):
    head, (hidden, target), past = one
    monkeypatch.setattr("highrank.heads.growth.LARGEST_NOISE", 0.0)
    new = grown(head, 3, hidden, target, **past)
    want = head.log_prob(hidden, **past)
    torch.testing.assert_close(new.log_prob(hidden, **past), want, rtol=0, atol=1e-10)
    assert new.num_components == 3 and head.num_components == 1
    if isinstance(head, SparseMixtureOfSoftmaxes):
        assert (head.num_active, new.num_active) == (1, 2)


def test_every_head_that_grows_keeps_its_loss_and_all_that_no_component_owns(one):
    head, (hidden, target), past = one
    new = grown(head, 5, hidden, target, **past)
    want = head(hidden, target, **past).loss.item()
    assert new(hidden, target, **past).loss.item() == pytest.approx(want, rel=1e-3)
    before, after = (dict(h.named_parameters()) for h in (head, new))
    assert before.keys() == after.keys()
    own = [name for name in after if after[name] is not before[name]]
    layers = {name.split(".")[-2] if "." in name else name for name in own}
    assert layers <= {"latent", "prior", "down", "up", "0", "1"} and len(own) >= 3
    assert all(len(after[name]) == 5 * len(before[name]) for name in own)
    buffers = dict(new.named_buffers())
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in head.named_buffers())


def test_components_of_every_head_differ_and_all_of_them_learn(one):
    head, (hidden, target), past = one
    new, known = grown(head, 3, hidden, target, **past), dict(head.named_parameters())
    loss = new(hidden, target, **past).loss
    own = [p for name, p in new.named_parameters() if p is not known[name] and p.dim() > 1]
    for parameter, gradient in zip(own, torch.autograd.grad(loss, own), strict=True):
        parts = parameter.unflatten(0, (3, -1))
        is_prior = len(parameter) == 3 and parameter.dim() == 2
        assert is_prior or (parts[0] - parts[1]).abs().max() > 1e-4
        assert gradient.unflatten(0, (3, -1)).flatten(1).any(1).all()


def one_component(scale=1.0):
    head = MixtureOfSoftmaxes(32, 100, 1, 16, dropout=0.5).double()
    with torch.no_grad():
        head.weight.normal_(std=scale)
        head.bias.normal_()
    return head


def states(count=500):
    return torch.randn(count, 32, dtype=torch.float64), torch.randint(100, (count,))


def noise_of(head, new):
    """(K, E, D), in standard deviations of the weights."""
    old = head.latent.weight
    return (new.latent.weight.unflatten(0, (new.num_components, -1)) - old) / old.std()


def loss(head, hidden, target):
    return head.eval()(hidden, target).loss.item()


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("num_components", [2, 10])
def test_the_loss_changes_by_less_than_a_thousandth(scale, num_components):
    head, (hidden, target) = one_component(scale), states()
    new = grown(head, num_components, hidden, target)
    assert new.num_components == num_components
    assert loss(new, hidden, target) == pytest.approx(loss(head, hidden, target), rel=1e-3)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_there_is_as_much_noise_as_the_loss_allows(scale, monkeypatch):
    head, (hidden, target) = one_component(scale), states()
    new = grown(head, 10, hidden, target, torch.Generator().manual_seed(0))
    size = noise_of(head, new).std().item() / 0.9**0.5
    trial = round(torch.log2(torch.tensor(LARGEST_NOISE / size)).item())
    assert size == pytest.approx(LARGEST_NOISE / 2**trial, rel=0.02) and trial < NUM_TRIALS
    if trial > 0:
        # Twice as much would have been too much.
        monkeypatch.setattr("highrank.heads.growth.LARGEST_NOISE", LARGEST_NOISE / 2 ** (trial - 1))
        monkeypatch.setattr("highrank.heads.growth.NUM_TRIALS", 1)
        wilder = grown(head, 10, hidden, target, torch.Generator().manual_seed(0))
        change = loss(wilder, hidden, target) / loss(head, hidden, target) - 1
        assert abs(change) > 1e-3


def test_the_noise_sums_to_zero_and_the_change_is_of_second_order(monkeypatch):
    head, (hidden, target) = one_component(), states()
    monkeypatch.setattr("highrank.heads.growth.NUM_TRIALS", 1)
    changes = []
    for noise in (1e-2, 1e-3):
        monkeypatch.setattr("highrank.heads.growth.LARGEST_NOISE", noise)
        new = grown(head, 6, hidden, target, torch.Generator().manual_seed(0))
        changes.append(abs(loss(new, hidden, target) - loss(head, hidden, target)))
        assert noise_of(head, new).sum(0).abs().max() < 1e-12
    # A tenth of the noise, a hundredth of the change.
    assert changes[1] == pytest.approx(changes[0] / 100, rel=0.2)


def test_weights_start_uniform_and_components_differ():
    new = grown(one_component(), 4, *states()).eval()
    mixture = new.mixture(states(7)[0])
    quarter = torch.full((7, 4), 0.25, dtype=torch.float64)
    torch.testing.assert_close(mixture.log_weight.exp(), quarter)
    assert (mixture.context[:, 0] - mixture.context[:, 1]).abs().max() > 1e-3


def test_embedding_and_bias_are_the_same_parameters():
    head = one_component()
    new = grown(head, 3, *states())
    assert new.weight is head.weight and new.bias is head.bias


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_is_kept(is_training):
    head = one_component().train(is_training)
    assert grown(head, 3, *states()).training == head.training == is_training


def test_only_one_component_can_grow():
    with pytest.raises(ValueError, match="one component to grow, got MixtureOfSoftmaxes with 2"):
        grown(MixtureOfSoftmaxes(32, 100, 2, 3).double(), 5, *states())
    with pytest.raises(ValueError, match="one component to grow, got Softmax with 1"):
        grown(Softmax(32, 100).double(), 5, *states())
    with pytest.raises(ValueError, match="Softmax cannot change its number of components"):
        Softmax(32, 100).renew_components(2)


def test_states_without_a_finite_loss_are_refused():
    head, (hidden, target) = one_component(), states()
    with torch.no_grad():
        head.bias[target[0]] = -torch.inf
    with pytest.raises(ValueError, match="must have a finite loss, got inf"):
        grown(head, 5, hidden, target)


def test_a_confident_head_grows_with_as_little_noise_as_it_takes():
    head, (hidden, _) = one_component(30.0), states()
    target = head.eval().log_prob(hidden).argmax(-1)
    new = grown(head, 5, hidden, target)
    assert loss(new, hidden, target) == pytest.approx(loss(head, hidden, target), rel=1e-3)
    assert noise_of(head, new).abs().max() > 0
