"""Surprisal: each token against the definition, and the files that others read."""

import copy
import csv
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from highrank.data.vocabulary import Vocabulary
from highrank.evaluation import surprisal as module
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.static import evaluate, score
from highrank.evaluation.surprisal import check_format, evaluate_lines, surprisals
from highrank.heads import (
    Composed,
    Head,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    NGramComponent,
    Pointer,
    Softmax,
)
from highrank.models import AWDLSTM, LanguageModel

VOCABULARY = Vocabulary(("the", "<eos>", "cat", "sat", "<unk>", "on", "mat"))
V = len(VOCABULARY)
LINES = [["the", "cat", "sat", "<eos>"], [], ["the", "axolotl", "sat", "on", "mat", "<eos>"]]
WORDS = [*LINES[0], *LINES[2]]
HEADS = {
    "softmax": lambda: Softmax(8, V),
    "moc": lambda: MixtureOfContexts(8, V, 3, 6),
    "mos": lambda: MixtureOfSoftmaxes(8, V, 3, 6, dropout=0.5),
}


def build(kind):
    head = HEADS[kind]()
    backbone = AWDLSTM(V, 8 if kind == "softmax" else 6, (8,), output_dropout=0.5)
    model = LanguageModel(backbone, head).double()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    return model


@pytest.fixture(params=HEADS)
def model(request):
    return build(request.param)


def hidden_of(model):
    ids = torch.from_numpy(VOCABULARY.encode(["<eos>", *WORDS]))
    with torch.no_grad():
        model.eval()
        return ids[1:], model.backbone(ids[:-1, None], model.initial_state(1)).hidden[:, 0]


@pytest.mark.parametrize("window", [1, 3, None])
def test_probability_bits_and_rank_are_those_of_log_prob(window, model):
    target, hidden = hidden_of(model)
    for found, id_, log_prob in zip(
        surprisals(model.train(), VOCABULARY, WORDS, window),
        target.tolist(),
        copy.deepcopy(model.head).eval().log_prob(hidden).tolist(),
        strict=True,
    ):
        assert found.probability == pytest.approx(math.exp(log_prob[id_]), rel=1e-12)
        assert found.bits == pytest.approx(-math.log2(found.probability), rel=1e-12)
        assert found.rank == sorted(log_prob, reverse=True).index(log_prob[id_]) + 1


def test_the_component_gives_the_largest_part_of_the_probability():
    model = build("mos")
    target, hidden = hidden_of(model)
    log_weight, context = model.head.mixture(hidden)
    q = F.linear(context, model.head.weight, model.head.bias).softmax(-1)  # (T, K, V)
    part = log_weight.exp() * q[torch.arange(len(target)), :, target]  # (T, K)
    found = list(surprisals(model, VOCABULARY, WORDS))
    assert [row.component for row in found] == (part.argmax(-1) + 1).tolist()
    assert [row.probability for row in found] == pytest.approx(part.sum(-1).tolist(), rel=1e-12)
    weights = torch.tensor([row.weights for row in found], dtype=torch.float64)
    torch.testing.assert_close(weights, log_weight.exp())
    assert (part.argmax(-1) != log_weight.argmax(-1)).any()


def test_contexts_that_are_mixed_first_have_weights_but_no_component():
    found = next(surprisals(build("moc"), VOCABULARY, WORDS))
    assert found.component is None and sum(found.weights) == pytest.approx(1.0)
    assert len(found.weights) == 3
    found = next(surprisals(build("softmax"), VOCABULARY, WORDS))
    assert found.component == 1 and found.weights == (1.0,)


@pytest.mark.parametrize("settings", [(1, 0.5), (3, 0.0), (100, 2.0)])
def test_with_a_cache_all_is_of_model_and_cache_together(settings, model):
    cache = CacheSettings(window=settings[0], theta=settings[1], weight=0.4)
    tokens = WORDS * 3
    static = list(surprisals(model, VOCABULARY, tokens))
    for place, found in enumerate(surprisals(model, VOCABULARY, tokens, cache=cache)):
        text = VOCABULARY.encode(["<eos>", *tokens[: place + 1]])
        log_p = []
        # Each token of the vocabulary as the target.
        for token in range(V):
            text[-1] = token
            log_p.append(list(with_cache(score(model, text), cache))[-1].log_prob[-1].item())
        own = log_p[VOCABULARY.encode([tokens[place]]).item()]
        assert math.log(found.probability) == pytest.approx(own, rel=1e-10)
        assert found.rank == 1 + sum(other > own + 1e-12 for other in log_p)
        assert sum(map(math.exp, log_p)) == pytest.approx(1.0, rel=1e-10)
        part = 1 - 0.6 * static[place].probability / found.probability
        assert found.cache == pytest.approx(part, abs=1e-9) and found.cache >= 0
        assert found.component == static[place].component


def test_independent_lines_have_caches_of_their_own(tmp_path):
    model, cache = build("mos"), CacheSettings(weight=0.5)
    out = tmp_path / "out.csv"
    evaluate_lines(model, VOCABULARY, [LINES[0]] * 2, independent=True, cache=cache, out=out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row | {"line": "1"} for row in rows[4:]] == rows[:4] and rows[0]["cache"] == "0.5"


def test_a_vocabulary_without_eos_is_refused(model):
    with pytest.raises(ValueError, match="the vocabulary must have <eos>"):
        next(surprisals(model, Vocabulary(("a", "b")), ["a"]))


def test_csv_and_jsonl_have_the_same_rows_and_add_up_to_static_evaluation(model, tmp_path):
    tokens = VOCABULARY.encode(["<eos>", *WORDS])
    for suffix in (".csv", ".jsonl"):
        found = evaluate_lines(model, VOCABULARY, LINES, out=tmp_path / f"out{suffix}")
        assert found == pytest.approx(evaluate(model, tokens, 1))
    with (tmp_path / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(table) == len(lines) == len(WORDS)
    assert [(line["line"], line["position"]) for line in lines[3:6]] == [(1, 4), (3, 1), (3, 2)]
    assert [line["token"] for line in lines if not line["known"]] == ["axolotl"]
    for want, row, line in zip(surprisals(model, VOCABULARY, WORDS), table, lines, strict=True):
        assert all(int(row[name]) == line[name] for name in ("line", "position"))
        assert row["token"] == line["token"] == want.token
        assert int(row["known"]) == line["known"] == want.is_known
        assert float(row["surprisal_bits"]) == line["surprisal_bits"]
        assert line["surprisal_bits"] == pytest.approx(want.bits, rel=1e-8)
        assert line["probability"] == pytest.approx(want.probability, rel=1e-8)
        assert int(row["rank"]) == line["rank"] == want.rank
        assert row["component"] == str(want.component or "") and line["component"] == want.component
        weights = [float(row[f"weight_{k}"]) for k in range(1, len(want.weights) + 1)]
        assert weights == line["weights"] == pytest.approx(want.weights, rel=1e-8)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_file_that_cannot_be_finished_disappears(error, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        yield next(surprisals(*arguments, **options))
        raise error

    model = build("mos")
    monkeypatch.setattr(module, "surprisals", fail)
    with pytest.raises(error):
        evaluate_lines(model, VOCABULARY, LINES, out=tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


def test_the_file_must_be_csv_or_jsonl(tmp_path):
    check_format(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"must end in \.csv or \.jsonl, got a\.txt"):
        check_format(tmp_path.__class__("a.txt"))


def test_a_head_that_is_no_mixture_has_neither_weights_nor_components():
    class Plain(Head):
        def __init__(self, size):
            super().__init__(size, len(VOCABULARY))
            self.weight = torch.nn.Parameter(torch.randn(len(VOCABULARY), size))

        def log_prob_from(self, features):
            return (features @ self.weight.T).log_softmax(-1)

    model = LanguageModel(AWDLSTM(len(VOCABULARY), 6, (7,)), Plain(7), tied=False)
    found = list(surprisals(model, VOCABULARY, WORDS))
    assert all(s.weights == () and s.component is None for s in found)
    total = evaluate_lines(model, VOCABULARY, LINES)
    assert total.nats * len(found) == pytest.approx(math.log(2) * sum(s.bits for s in found))


def test_the_parts_of_a_pointer_and_of_an_n_gram_are_columns(tmp_path):
    parts = Pointer(8, V, num_states=5, key_size=4), NGramComponent(8, V, ngram_order=3)
    parts[1].fit(np.arange(200) % V, ())
    head = Composed(MixtureOfSoftmaxes(8, V, 1, 6), parts)
    model = LanguageModel(AWDLSTM(V, 6, (8,)), head).double().eval()
    found = list(surprisals(model, VOCABULARY, WORDS, window=3))
    ids = torch.from_numpy(VOCABULARY.encode(["<eos>", *WORDS]))[:, None]
    out = model.read(ids[:-1], model.initial_state(1))
    evaluate_lines(model, VOCABULARY, LINES, out=tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    shares = head.shares(out.hidden, ids[1:], **out.past)[:, 0]
    for name, want in zip(("pointer", "ngram"), shares[:, 1:].T, strict=True):
        assert [one.parts[name] for one in found] == pytest.approx(want.tolist())
        assert [float(row[name]) for row in rows] == pytest.approx(want.tolist())
        assert 0 < want.max() < 1
