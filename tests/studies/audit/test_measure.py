"""Audits against matrices that are small enough to be held."""

import gc
import json
import math
import weakref
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull

from highrank.analysis.unargmaxable import decide_tokens
from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.integrations.huggingface.output_layer import OutputLayer
from highrank.studies.audit import layer as layer_module
from highrank.studies.audit import measure as module
from highrank.studies.audit.layer import head_layer, hugging_face_layer
from highrank.studies.audit.measure import (
    audit_model,
    audit_unargmaxable,
    memory_budget,
    run_audit,
)
from highrank.studies.audit.model import AuditedModel, LoadedModel, read_contexts

V, D, GIB = 30, 6, 2**30


def randomised(head):
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head.eval()


def output_layer(**changes):
    fields = {"weight": torch.randn(V, D), "bias": None, "scale": 1.0, "softcap": None}
    return OutputLayer(**{**fields, "is_tied": False, **changes})


def of_head(head):
    return head_layer(randomised(head), is_tied=False, hidden_bound=1.0)


LAYERS = {
    "softmax": lambda: of_head(Softmax(D, V)),
    "moc": lambda: of_head(MixtureOfContexts(D, V, 3, 5)),
    "mos": lambda: of_head(MixtureOfSoftmaxes(D, V, 3, 5)),
    "mos of one": lambda: of_head(MixtureOfSoftmaxes(D, V, 1, 5)),
    "linear": lambda: hugging_face_layer(output_layer()),
    "bias and scale": lambda: hugging_face_layer(output_layer(bias=torch.randn(V), scale=0.5)),
    "softcap": lambda: hugging_face_layer(output_layer(softcap=2.0)),
    "bfloat16": lambda: hugging_face_layer(output_layer(weight=torch.randn(V, D).bfloat16())),
}
BOUNDS = {
    "softmax": D + 2,
    "moc": 5 + 2,
    "mos": None,
    "mos of one": 5 + 2,
    "linear": D + 1,
    "bias and scale": D + 2,
    "softcap": None,
    "bfloat16": D + 1,
}


def make_model(layer, num_tokens=200):
    """A model whose states are those of its last token: tanh of a table, so that all is known."""
    table = torch.randn(V, D).tanh()
    tokens = np.random.default_rng(0).integers(0, V, num_tokens)
    loaded = LoadedModel(
        architecture="table",
        num_parameters=7,
        layer=layer,
        hidden_states=lambda tokens: table[tokens],
    )
    model = AuditedModel(
        name="it",
        source="run",
        tokens=tokens,
        text="random",
        text_sha256="0",
        window=16,
        token=lambda index: f"w{index}",
        load=lambda: loaded,
    )
    return model, table


def nothing(fraction, text):
    pass


@pytest.mark.parametrize("name", LAYERS)
def test_an_audit_agrees_with_the_whole_matrix(name):
    layer = LAYERS[name]()
    model, table = make_model(layer)
    (found,) = run_audit([model], num_contexts=100).models
    positions = read_contexts(lambda t: table[t], model.tokens, 100, window=16).positions
    matrix = torch.cat(
        list(layer.log_probs(table[model.tokens[positions]], torch.float64).blocks())
    )
    values = torch.linalg.svdvals(matrix)
    got = torch.tensor(found.rank.singular_values, dtype=torch.float64)
    torch.testing.assert_close(got, values[: len(got)], rtol=1e-9, atol=1e-10)
    assert found.rank.bound == BOUNDS[name]
    assert found.rank.measures["numerical_rank_float64"] == int(
        torch.linalg.matrix_rank(matrix, rtol=1e-13)
    )
    prob = matrix.exp()
    pairs = ((prob * matrix).sum(1).mean() - prob.mean(0) @ matrix.mean(0)) * 100 / 99
    assert found.divergence.nats == pytest.approx(pairs.item(), rel=1e-4)
    targets = torch.from_numpy(model.tokens[positions + 1])
    nats = -matrix[torch.arange(100), targets].mean().item()
    assert found.text.nats == pytest.approx(nats, rel=1e-5)
    assert found.text.perplexity == pytest.approx(math.exp(nats), rel=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_log_probabilities_sum_to_one_and_results_are_json(name):
    model, table = make_model(LAYERS[name]())
    result = run_audit([model, model], num_contexts=60, quick=True)
    text = json.dumps(asdict(result), allow_nan=False)
    assert len(json.loads(text)["models"]) == 2
    layer = model.load().layer
    for precision, error in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        for block in layer.log_probs(table, precision).blocks():
            assert block.dtype == precision
            assert (block.exp().sum(1) - 1).abs().max() < error


def test_what_is_finished_is_reported_before_the_next_model_fails():
    model, _ = make_model(LAYERS["linear"]())
    broken = replace(model, load=lambda: pytest.fail("broken"))
    found = []
    with pytest.raises(pytest.fail.Exception, match="broken"):
        run_audit([model, model, broken], num_contexts=30, on_model=found.append)
    assert [len(result.models) for result in found] == [1, 2]


def test_texts_are_alike_if_their_tokens_are_written_alike():
    model, _ = make_model(LAYERS["linear"]())
    other = replace(model, token=lambda index: f"w{index + (index == 3)}")
    one, same, two = run_audit([model, replace(model), other], num_contexts=30).models
    assert one.text.tokens_sha256 == same.text.tokens_sha256 != two.text.tokens_sha256
    assert one.text.sha256 == two.text.sha256


def test_rank_grows_with_contexts_up_to_what_can_be_shown():
    model, _ = make_model(LAYERS["mos"](), num_tokens=300)
    rank = run_audit([model], num_contexts=16).models[0].rank
    assert [at.num_contexts for at in rank.growth] == [2, 4, 8, 16]
    ranks = [at.measures["numerical_rank_float64"] for at in rank.growth]
    assert all(at.num_contexts >= r for at, r in zip(rank.growth, ranks, strict=True))
    assert (rank.ceiling, rank.ceiling_reason) == (16, "contexts")
    rank = run_audit([model], num_contexts=200).models[0].rank
    assert (rank.ceiling, rank.ceiling_reason) == (V, "tokens")
    rank = run_audit([replace(model, load=make_model(LAYERS["linear"]())[0].load)]).models[0].rank
    assert (rank.ceiling, rank.ceiling_reason) == (D + 1, "bound")


def test_without_scipy_everything_else_is_audited(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    (found,) = run_audit([make_model(LAYERS["softmax"]())[0]], num_contexts=50).models
    assert found.unargmaxable is None and "pip install '.[audit]'" in found.unargmaxable_note
    assert found.rank.measures["numerical_rank_float64"] == D + 2


def test_a_mixtures_tokens_are_not_decided_but_its_components_are_described():
    (found,) = run_audit([make_model(LAYERS["mos"]())[0]], num_contexts=50).models
    assert found.unargmaxable is None and "not decided" in found.unargmaxable_note
    assert len(found.mixture.components) == 3
    assert sum(c.mean_weight for c in found.mixture.components) == pytest.approx(1)
    model = make_model(LAYERS["mos"]())[0]
    written = " ".join(model.token(token) for token in model.tokens)
    for component in found.mixture.components:
        assert len(component.top_contexts) == 5
        for context in component.top_contexts:
            assert f"{context.text} {context.next_token}" in written


def test_sampled_tokens_keep_the_bound(monkeypatch):
    monkeypatch.setattr(layer_module, "QUICK_TOKENS", 12)
    monkeypatch.setattr(layer_module, "LINEAR_COPIES", 10**9)
    rank = (
        run_audit([make_model(LAYERS["linear"]())[0]], num_contexts=50, quick=True).models[0].rank
    )
    assert (rank.method, rank.num_tokens) == ("stable", 12)
    assert rank.measures["numerical_rank_float64"] == D + 1
    assert "12 of 30 tokens were drawn" in rank.method_reason
    assert len(rank.singular_values) == 12


@pytest.mark.parametrize("free, budget", [(2**21, 2**20), (2**60, module.MAX_BYTES)])
def test_the_memory_budget_is_half_of_what_is_free(monkeypatch, free, budget):
    monkeypatch.setattr(module, "free_memory", lambda: free)
    assert memory_budget() == budget
    monkeypatch.setattr(module, "free_memory", lambda: None)
    assert memory_budget() == module.MAX_BYTES


def test_weights_are_freed_before_the_matrix_is_measured():
    layer, kept = LAYERS["linear"](), []

    class Body:
        table = torch.randn(V, D)

        def __call__(self, tokens):
            return self.table[tokens]

    def load():
        body = Body()
        kept.append(weakref.ref(body))
        return LoadedModel(architecture="", num_parameters=1, layer=layer, hidden_states=body)

    def on_progress(fraction, text):
        if text.startswith("rank"):
            gc.collect()
            assert kept[0]() is None

    model = replace(make_model(layer)[0], load=load)
    audit_model(model, 50, False, on_progress)
    assert kept


def test_progress_rises_from_model_to_model():
    shares = []
    model, _ = make_model(LAYERS["mos"]())
    run_audit([model, model], num_contexts=50, on_progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)


def test_tokens_that_the_head_does_not_know_are_refused():
    model, _ = make_model(LAYERS["linear"]())
    with pytest.raises(ValueError, match="must be below its vocabulary size 30, got 99"):
        run_audit([replace(model, tokens=[1, 99, 3, 4])])
    with pytest.raises(ValueError, match="models must have at least one, got none"):
        run_audit([])


def vectors_of(weight, softcap=None):
    return hugging_face_layer(output_layer(weight=weight, softcap=softcap)).vectors


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_tokens_inside_the_hull_of_others_are_listed(monkeypatch, is_quick, softcap):
    monkeypatch.setattr(module, "QUICK_MULTIPLIES", 0)
    weight = torch.randn(V, 2)
    weight[7] = weight[:7].mean(0)
    weight[5] = weight[4]
    vectors = vectors_of(weight, softcap)
    found, note = audit_unargmaxable(vectors, lambda i: f"w{i}", is_quick, GIB, nothing)
    assert note == "" and "w7" in [token.token for token in found.unargmaxable]
    planted = next(token for token in found.unargmaxable if token.index == 7)
    assert planted.between and "w7" not in planted.between
    counts = (found.num_argmaxable, found.num_unargmaxable, found.num_undecided)
    assert sum(counts) == V and found.num_untried == 0
    # In the plane the vertices of the hull lead in some direction, and nothing else does.
    corners = set(ConvexHull(weight.double().numpy()).vertices.tolist())
    unargmaxable = {token.index for token in found.unargmaxable}
    twins = {4, 5} if corners & {4, 5} else set()
    assert unargmaxable == set(range(V)) - corners - twins
    assert found.num_tied == len(twins)


def test_tokens_for_which_there_is_no_time_are_untried():
    weight = vectors_of(torch.randn(V, 2)).weight
    patient = decide_tokens(weight, num_sampled=10, seconds=60.0)
    assert len(patient) == V and sum(token.is_untried for token in patient) == V - 10
    hasty = decide_tokens(weight, num_sampled=10, seconds=0.0)
    assert sum(token.is_untried for token in hasty) > V - 10
    for token, known in zip(hasty, patient, strict=True):
        assert token.is_untried == (token.certificate is None)
        assert token.is_untried or token.verdict is known.verdict


@pytest.mark.parametrize("is_sampled", [False, True])
def test_only_a_quick_audit_has_a_limit(monkeypatch, is_sampled):
    monkeypatch.setattr(module, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(module, "QUICK_MULTIPLIES", 0 if is_sampled else 1e9)
    vectors = vectors_of(torch.randn(V, 2))
    quick, _ = audit_unargmaxable(vectors, str, True, GIB, nothing)
    assert quick.num_untried > V / 2 and quick.num_unargmaxable == quick.num_undecided == 0
    assert quick.num_argmaxable + quick.num_untried == V
    whole, _ = audit_unargmaxable(vectors, str, False, GIB, nothing)
    assert whole.num_untried == 0 and whole.num_argmaxable + whole.num_unargmaxable == V


def test_tokens_that_would_not_fit_are_left_out_with_a_reason():
    found, note = audit_unargmaxable(vectors_of(torch.randn(V, 6)), str, False, 100, nothing)
    assert found is None and "GiB of memory" in note
