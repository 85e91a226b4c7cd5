"""Audits against matrices that are small enough to be held."""

import gc
import json
import math
import weakref
from dataclasses import asdict, replace

import pytest
import torch
from scipy.spatial import ConvexHull

from highrank.heads import Composed, MixtureOfContexts, MixtureOfSoftmaxes, Pointer, Softmax
from highrank.heads.linear import LinearHead
from highrank.models import AWDLSTM, LanguageModel
from highrank.predictor import LanguageModelPredictor, read_contexts
from highrank.studies.audit import measure as module
from highrank.studies.audit import rank as rank_module
from highrank.studies.audit import tokens as tokens_module
from highrank.studies.audit.layer import Vectors, layer_of
from highrank.studies.audit.measure import (
    audit_model,
    memory_budget,
    run_audit,
)
from highrank.studies.audit.rank import Method
from highrank.studies.audit.tokens import audit_unargmaxable

V, D, GIB = 30, 6, 2**30

# With the bound on their rank.
HEADS = {
    "softmax": (lambda: Softmax(D, V), D + 2),
    "moc": (lambda: MixtureOfContexts(D, V, 3, 5), 5 + 2),
    "mos": (lambda: MixtureOfSoftmaxes(D, V, 3, 5), None),
    "mos of one": (lambda: MixtureOfSoftmaxes(D, V, 1, 5), 5 + 2),
    "linear": (lambda: LinearHead(torch.randn(V, D)), D + 1),
    "bias and scale": (lambda: LinearHead(torch.randn(V, D), torch.randn(V), scale=0.5), D + 2),
    "softcap": (lambda: LinearHead(torch.randn(V, D), softcap=2.0), None),
    "bfloat16": (lambda: LinearHead(torch.randn(V, D).bfloat16()), D + 1),
}


@pytest.fixture
def model(make):
    """Makes a model to audit, with one of the heads."""
    return lambda name, **options: make.audited(
        make.predictor(HEADS[name][0](), hidden_bound=1.0), **options
    )


def nothing(fraction, text):
    pass


@pytest.mark.parametrize("name", HEADS)
def test_an_audit_agrees_with_the_whole_matrix(model, name):
    model = model(name)
    (found,) = run_audit([model], num_contexts=100).models
    predictor = model.model.load()
    contexts = read_contexts(predictor.hidden_states, model.tokens, 100, window=16)
    hidden, positions = contexts.hidden, contexts.positions
    assert torch.equal(hidden, predictor.table[model.tokens[positions]])
    layer = layer_of(predictor)
    matrix = torch.cat(list(layer.log_probs(hidden, torch.float64).blocks()))
    torch.testing.assert_close(matrix.exp().sum(1), torch.ones(100).double())
    values = torch.linalg.svdvals(matrix)
    got = torch.tensor(found.rank.singular_values, dtype=torch.float64)
    torch.testing.assert_close(got, values[: len(got)], rtol=1e-9, atol=1e-10)
    assert found.rank.bound == HEADS[name][1] and "states it" not in found.rank.bound_reason
    rank = torch.linalg.matrix_rank(matrix, rtol=1e-13)
    assert found.rank.measures["numerical_rank_float64"] == int(rank)
    prob = matrix.exp()
    pairs = ((prob * matrix).sum(1).mean() - prob.mean(0) @ matrix.mean(0)) * 100 / 99
    assert found.divergence.nats == pytest.approx(pairs.item(), rel=1e-4)
    targets = torch.from_numpy(model.tokens[positions + 1])
    nats, shuffled = (-matrix[torch.arange(100), t].mean() for t in (targets, targets.roll(50)))
    assert found.text.nats == pytest.approx(nats.item(), rel=1e-5)
    assert found.text.perplexity == pytest.approx(math.exp(nats), rel=1e-5)
    assert found.text.shuffled_nats == pytest.approx(shuffled.item(), rel=1e-5)


def test_results_are_json(model):
    audited = model("mos")
    done = []
    result = run_audit(
        [audited, audited],
        num_contexts=60,
        quick=True,
        on_progress=lambda part, _: done.append(part),
    )
    assert done == sorted(done) and done[-1] == pytest.approx(1)
    found = json.loads(json.dumps(asdict(result), allow_nan=False))
    assert [audit["answer"]["verdict"] for audit in found["models"]] == ["unknown"] * 2


def test_a_fit_is_part_of_the_progress(make, monkeypatch):
    monkeypatch.setattr(module, "fit_heads", lambda *_, on_progress, **__: on_progress(0.5, "mos"))
    done = []
    model = make.audited(make.predictor(Softmax(D, V)), num_tokens=4500)
    run_audit([model], num_contexts=60, on_progress=lambda part, text: done.append((part, text)))
    assert done[-2:] == [(0.75, "fit: mos"), (1.0, "done")]
    assert [part for part, _ in done] == sorted(part for part, _ in done)


def test_a_head_that_looks_back_is_measured_after_a_long_history(make, monkeypatch):
    pointer = Pointer(7, V, num_states=8, key_size=5)
    head = Composed(MixtureOfSoftmaxes(7, V, 2, 6), [pointer])
    inner = LanguageModel(AWDLSTM(V, 6, (9, 7)), head).eval()
    for parameter in inner.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    monkeypatch.setattr(module, "LONG_HISTORY", 200)
    model = make.audited(LanguageModelPredictor(inner))
    (found,) = run_audit([model], num_contexts=150).models
    assert found.rank.bound is None and found.rank.numerical_rank == V
    tokens = torch.from_numpy(model.tokens)
    read = inner.read(tokens[:, None], inner.initial_state(1))
    log_p = inner.head.log_prob(read.hidden, **read.past)[:, 0]  # (200, V)
    contexts = read_contexts(lambda t: t[..., None].float(), model.tokens, 150, window=16)
    positions = torch.from_numpy(contexts.positions)
    nats = -log_p[positions, tokens[positions + 1]].mean().item()
    assert found.text.nats == pytest.approx(nats, rel=1e-4)


def test_what_is_finished_is_reported_before_the_next_model_fails(model):
    good = model("linear")
    found = []
    with pytest.raises(ValueError, match="must be below its vocabulary size 30, got 99"):
        run_audit(
            [good, good, replace(good, tokens=[1, 99, 3, 4])],
            num_contexts=30,
            on_model=found.append,
        )
    assert [len(result.models) for result in found] == [1, 2]
    with pytest.raises(ValueError, match="models must have at least one, got none"):
        run_audit([])


def test_texts_are_alike_if_their_tokens_are_written_alike(model):
    one, other = model("linear"), model("linear")
    other.model.token = lambda index: f"w{index + (index == 3)}"
    first, same, second = run_audit([one, replace(one), other], num_contexts=30).models
    assert first.text.tokens_sha256 == same.text.tokens_sha256 != second.text.tokens_sha256
    assert first.text.sha256 == second.text.sha256


def test_rank_grows_with_contexts_up_to_what_can_be_shown(model):
    mos = model("mos", num_tokens=300)
    rank = run_audit([mos], num_contexts=16).models[0].rank
    assert [at.num_contexts for at in rank.growth] == [2, 4, 8, 16]
    ranks = [at.measures["numerical_rank_float64"] for at in rank.growth]
    assert all(at.num_contexts >= r for at, r in zip(rank.growth, ranks, strict=True))
    assert (rank.ceiling, rank.ceiling_reason) == (16, "contexts")
    rank = run_audit([mos], num_contexts=200).models[0].rank
    assert (rank.ceiling, rank.ceiling_reason) == (V, "tokens")
    rank = run_audit([model("linear")]).models[0].rank
    assert (rank.ceiling, rank.ceiling_reason) == (D + 1, "bound")


def test_without_scipy_everything_else_is_audited(model, monkeypatch):
    monkeypatch.setattr(tokens_module, "find_spec", lambda name: None)
    (found,) = run_audit([model("softmax")], num_contexts=50).models
    assert found.unargmaxable is None and "pip install '.[cli]'" in found.unargmaxable_note
    assert found.rank.measures["numerical_rank_float64"] == D + 2


def test_a_mixtures_tokens_are_not_decided_but_its_components_are_described(model):
    mos = model("mos")
    (found,) = run_audit([mos], num_contexts=50).models
    assert found.unargmaxable is None and "not decided" in found.unargmaxable_note
    assert len(found.mixture.components) == 3
    assert sum(c.mean_weight for c in found.mixture.components) == pytest.approx(1)
    written = " ".join(mos.model.token(token) for token in mos.tokens)
    for component in found.mixture.components:
        assert len(component.top_contexts) == 5
        for context in component.top_contexts:
            assert f"{context.text} {context.next_token}" in written


def test_sampled_tokens_keep_the_bound(model, monkeypatch):
    monkeypatch.setattr(rank_module, "QUICK_TOKENS", 12)
    monkeypatch.setattr(rank_module, "LINEAR_COPIES", 10**9)
    rank = run_audit([model("linear")], num_contexts=50, quick=True).models[0].rank
    assert (rank.method, rank.num_tokens) == (Method.STABLE, 12)
    assert rank.measures["numerical_rank_float64"] == D + 1
    assert "12 of 30 tokens were drawn" in rank.method_reason
    assert len(rank.singular_values) == 12


@pytest.mark.parametrize("free, budget", [(2**21, 2**20), (2**60, 4 * GIB), (None, 4 * GIB)])
def test_the_memory_budget_is_half_of_what_is_free(monkeypatch, free, budget):
    monkeypatch.setattr(module, "free_memory", lambda: free)
    assert memory_budget() == budget


def test_weights_are_freed_before_the_matrix_is_measured(model):
    audited, kept = model("linear"), []
    loaded = audited.model.load()

    def load(device):
        twin = type(loaded)(loaded.head, loaded.table)
        kept.append(weakref.ref(twin))
        return twin

    def on_progress(fraction, text):
        if text.startswith("rank"):
            gc.collect()
            assert kept[0]() is None

    audited.model.load = load
    audit_model(audited, 50, False, on_progress)
    assert kept


def vectors_of(make, weight, **options) -> Vectors:
    return layer_of(make.predictor(LinearHead(weight, **options))).vectors


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_tokens_inside_the_hull_of_others_are_listed(make, monkeypatch, is_quick, softcap):
    monkeypatch.setattr(tokens_module, "QUICK_MULTIPLIES", 0)
    weight = torch.randn(V, 2)
    weight[4] = weight[5] = torch.tensor([9.0, 9.0])
    weight[7] = weight[:7].mean(0)
    vectors = vectors_of(make, weight, softcap=softcap)
    found, note = audit_unargmaxable(vectors, lambda i: f"w{i}", is_quick, GIB, nothing)
    assert note == "" and "w7" in [token.token for token in found.unargmaxable]
    planted = next(token for token in found.unargmaxable if token.index == 7)
    assert planted.between and "w7" not in planted.between
    counts = (found.num_argmaxable, found.num_unargmaxable, found.num_undecided)
    assert sum(counts) == V and found.num_untried == 0
    # In the plane the vertices of the hull lead in some direction, and nothing else does.
    corners = set(ConvexHull(weight.double().numpy()).vertices.tolist())
    unargmaxable = {token.index for token in found.unargmaxable}
    assert unargmaxable == set(range(V)) - corners - {4, 5} and found.num_tied == 2


@pytest.mark.parametrize("is_sampled", [False, True])
def test_only_a_quick_audit_has_a_limit(make, monkeypatch, is_sampled):
    monkeypatch.setattr(tokens_module, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(tokens_module, "QUICK_MULTIPLIES", 0 if is_sampled else 1e9)
    vectors = vectors_of(make, torch.randn(V, 2))
    quick, _ = audit_unargmaxable(vectors, str, True, GIB, nothing)
    assert quick.num_untried > V / 2 and quick.num_unargmaxable == quick.num_undecided == 0
    assert quick.num_argmaxable + quick.num_untried == V
    slow, _ = audit_unargmaxable(vectors, str, False, GIB, nothing)
    assert slow.num_untried == 0 and slow.num_argmaxable + slow.num_unargmaxable == V


def test_tokens_that_would_not_fit_are_left_out_with_a_reason(make):
    found, note = audit_unargmaxable(vectors_of(make, torch.randn(V, 6)), str, False, 100, nothing)
    assert found is None and "GiB of memory" in note


@pytest.mark.parametrize("has_unused", [True, False])
def test_under_trained_tokens_are_named(make, has_unused):
    torch.manual_seed(0)
    weight, unused = torch.randn(200, 16) + 2, (3, 50)
    for index in (*unused, 7, 90):
        weight[index] = torch.full((16,), 1e-2) + 1e-3 * torch.randn(16)
    if has_unused:
        weight[[*unused, 7, 90]] += 5 * torch.randn(16)
    model = make.audited(make.table(LinearHead(weight), torch.randn(200, 16)), [7, 1] * 60)
    model = replace(model, unused=unused if has_unused else ())
    (found,) = run_audit([model], num_contexts=50).models
    facts = found.undertrained
    assert facts.measure == ("cosine distance" if has_unused else "norm")
    near = {token.index: token for token in facts.undertrained}
    assert set(near) == ({7, 90} if has_unused else {3, 7, 50, 90})
    assert facts.num_undertrained == len(near) and facts.num_unused == (2 if has_unused else 0)
    assert (near[7].token, near[7].num_seen, near[90].num_seen) == ("w7", 60, 0)
