"""Words planted inside a hull, and words for which there is no time."""

import pytest
import torch
from scipy.spatial import ConvexHull

from highrank.analysis.unargmaxable import decide_words
from highrank.analysis.unargmaxable.result import Verdict
from highrank.heads import Softmax
from highrank.integrations.huggingface import OutputLayer
from highrank.studies.audit import unargmaxable as module
from highrank.studies.audit.layer import head_layer, hugging_face_layer
from highrank.studies.audit.unargmaxable import audit_reachability, decide_sample

V, GIB = 30, 2**30


def layer_of(weight, softcap=None):
    return hugging_face_layer(
        OutputLayer(weight=weight, bias=None, scale=1.0, softcap=softcap, is_tied=False)
    )


def nothing(share, text):
    pass


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_words_inside_the_hull_of_others_are_listed(monkeypatch, is_quick, softcap):
    monkeypatch.setattr(module, "QUICK_MULTIPLIES", 0)
    weight = torch.randn(V, 2)
    weight[7] = weight[:7].mean(0)
    weight[5] = weight[4]
    layer = layer_of(weight, softcap)
    found, note = audit_reachability(layer, lambda i: f"w{i}", is_quick, GIB, nothing)
    assert note == "" and "w7" in [word.word for word in found.unreachable]
    planted = next(word for word in found.unreachable if word.index == 7)
    assert planted.between and "w7" not in planted.between
    counts = (found.num_reachable, found.num_unreachable, found.num_undecided, found.num_untried)
    assert sum(counts) == V and found.num_untried == 0
    # In the plane the vertices of the hull lead in some direction, and nothing else does.
    corners = set(ConvexHull(weight.double().numpy()).vertices.tolist())
    unreachable = {word.index for word in found.unreachable}
    twins = {4, 5} if corners & {4, 5} else set()
    assert unreachable == set(range(V)) - corners - twins
    assert found.num_tied == len(twins)


def test_words_for_which_there_is_no_time_are_untried():
    vectors = layer_of(torch.randn(V, 2)).vectors
    patient = decide_sample(vectors, 10, seconds=60.0, on_progress=nothing)
    assert len(patient) == V and sum(word.is_untried for word in patient) == V - 10
    hasty = decide_sample(vectors, 10, seconds=0.0, on_progress=nothing)
    assert sum(word.is_untried for word in hasty) > V - 10
    for word, known in zip(hasty, patient, strict=True):
        assert word.is_untried == (word.certificate is None)
        assert word.is_untried or word.verdict is known.verdict


@pytest.mark.parametrize("is_sampled", [False, True])
def test_only_a_quick_audit_has_a_limit(monkeypatch, is_sampled):
    monkeypatch.setattr(module, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(module, "QUICK_MULTIPLIES", 0 if is_sampled else 1e9)
    layer = layer_of(torch.randn(V, 2))
    quick, _ = audit_reachability(layer, str, True, GIB, nothing)
    assert quick.num_untried > V / 2 and quick.num_unreachable == quick.num_undecided == 0
    assert quick.num_reachable + quick.num_untried == V
    whole, _ = audit_reachability(layer, str, False, GIB, nothing)
    assert whole.num_untried == 0 and whole.num_reachable + whole.num_unreachable == V


def test_a_head_of_ours_is_asked_for_states_between_one_and_minus_one():
    head = Softmax(6, V)
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
        head.weight[3] *= 10
        head.bias[3] = -1e3
    layer = head_layer(head, False)
    found, _ = audit_reachability(layer, str, False, GIB, nothing)
    assert "between -1 and 1" in found.states
    assert 3 in [word.index for word in found.unreachable]
    everywhere = decide_words(head.weight, head.bias)
    assert everywhere.words[3].verdict is Verdict.REACHABLE


def test_reachability_that_would_not_fit_is_left_out_with_a_reason():
    layer = layer_of(torch.randn(V, 6))
    found, note = audit_reachability(layer, str, False, 100, nothing)
    assert found is None and "GiB of memory" in note
