"""Audits against matrices that are small enough to be held."""

import gc
import json
import math
import weakref
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.integrations.huggingface import OutputLayer
from highrank.studies.audit import rank as rank_module
from highrank.studies.audit import unargmaxable as reachability_module
from highrank.studies.audit.layer import head_layer, hugging_face_layer
from highrank.studies.audit.measure import audit_model, run_audit
from highrank.studies.audit.model import AuditedModel, OpenModel, read_contexts
from highrank.studies.audit.rank import free_bytes, plan_spectrum

V, D, GIB = 30, 6, 2**30


def randomised(head):
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head.eval()


def output_layer(**changes):
    fields = {"weight": torch.randn(V, D), "bias": None, "scale": 1.0, "softcap": None}
    return OutputLayer(**{**fields, "is_tied": False, **changes})


LAYERS = {
    "softmax": lambda: head_layer(randomised(Softmax(D, V)), False),
    "moc": lambda: head_layer(randomised(MixtureOfContexts(D, V, 3, 5)), False),
    "mos": lambda: head_layer(randomised(MixtureOfSoftmaxes(D, V, 3, 5)), False),
    "mos of one": lambda: head_layer(randomised(MixtureOfSoftmaxes(D, V, 1, 5)), False),
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
    opened = OpenModel(
        architecture="table", num_parameters=7, layer=layer, states=lambda tokens: table[tokens]
    )
    model = AuditedModel(
        name="it",
        source="run",
        tokens=tokens,
        text="random",
        text_sha256="0",
        window=16,
        word=lambda index: f"w{index}",
        open=lambda: opened,
    )
    return model, table


def nothing(share, text):
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
    assert found.rank.certified == int(torch.linalg.matrix_rank(matrix, rtol=1e-13))
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
    layer = model.open().layer
    for precision, error in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        for block in layer.log_probs(table, precision).blocks():
            assert block.dtype == precision
            assert (block.exp().sum(1) - 1).abs().max() < error


def test_what_is_finished_is_told_before_the_next_model_fails():
    model, _ = make_model(LAYERS["linear"]())
    broken = replace(model, open=lambda: pytest.fail("broken"))
    found = []
    with pytest.raises(pytest.fail.Exception, match="broken"):
        run_audit([model, model, broken], num_contexts=30, on_model=found.append)
    assert [len(result.models) for result in found] == [1, 2]


def test_texts_are_alike_if_their_tokens_are_written_alike():
    model, _ = make_model(LAYERS["linear"]())
    other = replace(model, word=lambda index: f"w{index + (index == 3)}")
    one, same, two = run_audit([model, replace(model), other], num_contexts=30).models
    assert one.text.tokens_sha256 == same.text.tokens_sha256 != two.text.tokens_sha256
    assert one.text.sha256 == two.text.sha256


def test_rank_grows_with_contexts_up_to_what_can_be_shown():
    model, _ = make_model(LAYERS["mos"](), num_tokens=300)
    rank = run_audit([model], num_contexts=16).models[0].rank
    assert [at.num_contexts for at in rank.growth] == [2, 4, 8, 16]
    assert all(at.certified <= at.num_contexts for at in rank.growth)
    assert (rank.ceiling, rank.ceiling_reason) == (16, "contexts")
    rank = run_audit([model], num_contexts=200).models[0].rank
    assert (rank.ceiling, rank.ceiling_reason) == (V, "words")
    rank = run_audit([replace(model, open=make_model(LAYERS["linear"]())[0].open)]).models[0].rank
    assert (rank.ceiling, rank.ceiling_reason) == (D + 1, "bound")


def test_without_scipy_everything_else_is_audited(monkeypatch):
    monkeypatch.setattr(reachability_module, "find_spec", lambda name: None)
    (found,) = run_audit([make_model(LAYERS["softmax"]())[0]], num_contexts=50).models
    assert found.reachability is None and "'.[audit]'" in found.reachability_note
    assert found.rank.certified == D + 2


def test_a_mixtures_words_are_not_decided_but_its_components_are_described():
    (found,) = run_audit([make_model(LAYERS["mos"]())[0]], num_contexts=50).models
    assert found.reachability is None and "not decided" in found.reachability_note
    assert len(found.mixture.components) == 3
    assert sum(c.mean_weight for c in found.mixture.components) == pytest.approx(1)
    model = make_model(LAYERS["mos"]())[0]
    words = [model.word(token) for token in model.tokens]
    written = " ".join(words)
    for component in found.mixture.components:
        for takeover in component.takeovers:
            assert f"{takeover.text} {takeover.next_word}" in written


def test_heads_that_would_not_fit_are_sampled_or_refused_before_work():
    layer = LAYERS["mos"]()
    big = replace(layer, facts=replace(layer.facts, vocab_size=250_000, context_size=2_000))
    plan = plan_spectrum(big, 2_000, False, 2 * GIB)
    assert plan.method == "stable" and "memory" in plan.reason
    assert rank_module.peak_bytes(2_000, plan.num_words) <= 2 * GIB
    assert rank_module.peak_bytes(2_000, plan.num_words + 2) > 2 * GIB
    assert plan_spectrum(big, 2_000, True, 2 * GIB).num_words == rank_module.QUICK_WORDS
    assert plan_spectrum(big, 9_000, False, 4 * GIB).method == "fast"
    with pytest.raises(ValueError, match="the free memory must be at least"):
        plan_spectrum(big, 2_000, False, 1000)


def test_a_linear_head_that_is_too_large_for_its_own_way_is_sampled():
    layer = LAYERS["linear"]()
    facts = replace(layer.facts, vocab_size=250_000, context_size=2_000)
    assert plan_spectrum(layer, 100, False, GIB).method == "linear"
    plan = plan_spectrum(replace(layer, facts=facts), 1_000, False, GIB)
    assert plan.method == "stable" and plan.num_words < 250_000


def test_sampled_words_keep_the_bound(monkeypatch):
    monkeypatch.setattr(rank_module, "QUICK_WORDS", 12)
    monkeypatch.setattr(rank_module, "LINEAR_COPIES", 10**9)
    rank = (
        run_audit([make_model(LAYERS["linear"]())[0]], num_contexts=50, quick=True).models[0].rank
    )
    assert (rank.method, rank.num_words, rank.certified) == ("stable", 12, D + 1)
    assert "12 of 30 words were drawn" in rank.method_reason
    assert len(rank.singular_values) == 12


def test_free_memory_is_half_of_what_linux_says(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert free_bytes(tmp_path / "meminfo") == 2**20
    assert free_bytes(tmp_path / "nothing") == rank_module.MAX_BYTES


def test_weights_are_let_go_before_the_matrix_is_measured():
    layer, kept = LAYERS["linear"](), []

    class Body:
        table = torch.randn(V, D)

        def __call__(self, tokens):
            return self.table[tokens]

    def open_model():
        body = Body()
        kept.append(weakref.ref(body))
        return OpenModel(architecture="", num_parameters=1, layer=layer, states=body)

    def on_progress(share, text):
        if text.startswith("rank"):
            gc.collect()
            assert kept[0]() is None

    model = replace(make_model(layer)[0], open=open_model)
    audit_model(model, 50, False, on_progress)
    assert kept


def test_progress_rises_from_model_to_model():
    shares = []
    model, _ = make_model(LAYERS["mos"]())
    run_audit([model, model], num_contexts=50, on_progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)


def test_tokens_that_the_head_does_not_know_are_refused():
    model, _ = make_model(LAYERS["linear"]())
    with pytest.raises(ValueError, match="must be below its 30 words, got 99"):
        run_audit([replace(model, tokens=[1, 99, 3, 4])])
    with pytest.raises(ValueError, match="models must have at least one, got none"):
        run_audit([])
