"""One training step: the original head against ours."""

import pytest
import torch

from highrank.heads import MixtureOfSoftmaxes
from highrank.studies.bench.step import ORIGINAL, OriginalMixture, original_head, prepare_step


def test_the_original_head_has_our_loss_but_for_its_epsilon():
    ours = MixtureOfSoftmaxes(6, 50, 3, 4).double()
    original = original_head(ours).double()
    assert isinstance(original, OriginalMixture)
    hidden, target = torch.randn(5, 2, 6).double(), torch.randint(50, (5, 2))
    want, got = ours(hidden, target), original(hidden, target)
    shifted = (want.output.exp() + 1e-8).log()
    torch.testing.assert_close(got.output, shifted, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.loss, -shifted.mean())


@pytest.mark.slow
def test_steps_of_both_heads_have_the_same_loss():
    assert prepare_step("ptb-mos", 2)() == pytest.approx(prepare_step(ORIGINAL, 2)(), rel=1e-4)
