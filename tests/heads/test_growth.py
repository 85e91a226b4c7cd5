"""A mixture grown from one softmax: the same predictions, free to part."""

import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes, Softmax
from highrank.heads.growth import LARGEST_NOISE, NUM_TRIALS, grown


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
