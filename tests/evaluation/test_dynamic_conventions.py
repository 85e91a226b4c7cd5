"""Conversion of published hyper-parameters; that the losses agree is in test_dynamic.py."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank.evaluation.dynamic import CONVENTIONS, DynamicSettings, converted


@pytest.mark.parametrize(
    "lr, epsilon, decay, num_batches, want",
    [
        (0.002, 0.001, 0.075, 1859, (4.64e-5, 2.32e-5, 4.41e-3)),  # ptb-mos
        (0.002, 0.002, 0.02, 4177, (3.09e-5, 3.09e-5, 1.18e-3)),  # wt2-mos
    ],
)
def test_the_settings_of_the_mixtures_are_as_derived(lr, epsilon, decay, num_batches, want):
    theirs = DynamicSettings(lr=lr, epsilon=epsilon, decay=decay)
    ours = converted(theirs, "original", num_batches=num_batches, num_tensors=17)
    assert (ours.lr, ours.epsilon, ours.decay) == pytest.approx(want, rel=5e-3)


def test_the_third_convention_differs_in_the_decay_only():
    theirs = DynamicSettings(lr=1e-4, epsilon=1e-5, decay=0.34, segment=7, adapt=("head",))
    ours = converted(theirs, "ms", num_batches=100, num_tensors=17)
    assert ours.decay == pytest.approx(0.02)
    assert dataclasses.replace(ours, decay=theirs.decay) == theirs


@given(
    st.sampled_from(list(CONVENTIONS)),
    st.sampled_from(list(CONVENTIONS)),
    st.sampled_from(list(CONVENTIONS)),
    st.integers(1, 10_000),
    st.integers(1, 500),
)
def test_a_detour_ends_at_the_same_place(first, second, third, num_batches, num_tensors):
    sizes = {"num_batches": num_batches, "num_tensors": num_tensors}
    start = DynamicSettings(lr=3e-4, epsilon=2e-5, decay=0.01)
    direct = converted(start, first, third, **sizes)
    detour = converted(converted(start, first, second, **sizes), second, third, **sizes)
    assert dataclasses.astuple(detour)[:3] == pytest.approx(dataclasses.astuple(direct)[:3])


def test_mistakes_are_named():
    sizes = {"num_batches": 10, "num_tensors": 3}
    with pytest.raises(ValueError, match="one of paper, original, ms, got 'old'"):
        converted(DynamicSettings(), "old", **sizes)
    with pytest.raises(ValueError, match="of the rule rms to be converted, got sgd"):
        converted(DynamicSettings(rule="sgd"), "original", **sizes)
