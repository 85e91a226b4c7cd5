"""A mixture grown from one softmax: the same predictions, free to part."""

import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes
from highrank.heads.growth import grown


def one_component():
    head = MixtureOfSoftmaxes(32, 100, 1, 16)
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
    return head


def test_the_loss_changes_by_less_than_a_thousandth():
    head, hidden, target = one_component(), torch.randn(500, 32), torch.randint(100, (500,))
    new = grown(head, 10)
    before, after = head(hidden, target).loss, new(hidden, target).loss
    assert abs(after / before - 1) < 1e-3
    assert new.num_components == 10


def test_the_change_is_of_second_order_in_the_noise(monkeypatch):
    head, hidden, target = (
        one_component().double(),
        torch.randn(500, 32),
        torch.randint(100, (500,)),
    )
    hidden = hidden.double()
    before, changes = head(hidden, target).loss, []
    for noise in (1e-2, 1e-3):
        monkeypatch.setattr("highrank.heads.growth.NOISE", noise)
        new = grown(head, 6, torch.Generator().manual_seed(0))
        changes.append((new(hidden, target).loss - before).abs().item())
    # A tenth of the noise, a hundredth of the change.
    assert changes[1] == pytest.approx(changes[0] / 100, rel=0.2)


def test_weights_start_uniform_and_components_differ():
    new = grown(one_component(), 4)
    mixture = new.mixture(torch.randn(7, 32))
    torch.testing.assert_close(mixture.log_weight.exp(), torch.full((7, 4), 0.25))
    assert (mixture.context[:, 0] - mixture.context[:, 1]).abs().max() > 1e-4


def test_embedding_and_bias_are_the_same_parameters():
    head = one_component()
    new = grown(head, 3)
    assert new.weight is head.weight and new.bias is head.bias


def test_only_one_component_can_grow():
    with pytest.raises(ValueError, match="must have one component to grow, got 2"):
        grown(MixtureOfSoftmaxes(4, 9, 2, 3), 5)
