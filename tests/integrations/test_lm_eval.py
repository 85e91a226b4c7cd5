"""lm-evaluation-harness: its numbers are those of `highrank evaluate`, each per its own unit."""

import json
import math
from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval")
import lm_eval
from lm_eval.tasks import TaskManager

import highrank
from highrank.data.text import tokenized_lines
from highrank.data.tokenizer import readable
from highrank.evaluation.static import evaluate
from highrank.generation import generate
from highrank.integrations.lm_eval import RunLM, harness_model

TEXT = "the old cat saw a dog.\nit slept, and then the dog slept.\n"
TASK = """task: tale
dataset_path: json
dataset_kwargs:
  data_files:
    test: {path}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""
# The harness and what it brings along warn of their own matters.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def model(loaded):
    return harness_model(str(loaded.folder))


def request(*arguments):
    return SimpleNamespace(args=arguments)


def text_nats(loaded, text):
    """Of a text that ends with a newline, and its number of tokens."""
    lines = tokenized_lines(text, loaded.corpus.header.recipe)
    ids = loaded.vocabulary.encode(["<eos>", *(token for line in lines for token in line)])
    found = evaluate(loaded.model, ids, 1)
    return found.nats * found.num_tokens, found.num_tokens


def test_the_harness_divides_our_sum_by_its_own_counts(loaded, model, tmp_path):
    (tmp_path / "tale.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    (tmp_path / "tale.yaml").write_text(TASK.format(path=tmp_path / "tale.jsonl"))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=["tale"], task_manager=tasks)
    metrics = found["results"]["tale"]
    nats, num_tokens = text_nats(loaded, TEXT)
    assert model.totals.num_tokens == num_tokens
    assert model.totals.token_perplexity == pytest.approx(math.exp(nats / num_tokens), rel=1e-6)
    words, num_bytes = len(TEXT.split()) + 1, len(TEXT)
    assert metrics["word_perplexity,none"] == pytest.approx(math.exp(nats / words), rel=1e-6)
    assert metrics["byte_perplexity,none"] == pytest.approx(math.exp(nats / num_bytes), rel=1e-6)
    assert metrics["bits_per_byte,none"] == pytest.approx(nats / num_bytes / math.log(2), rel=1e-6)


def test_a_text_is_the_sum_of_its_parts(model):
    (whole,) = model.loglikelihood_rolling([request(TEXT)], disable_tqdm=True)
    cut = len("the old cat")
    parts = model.loglikelihood(
        [request("", TEXT[:cut]), request(TEXT[:cut], TEXT[cut:])], disable_tqdm=True
    )
    assert whole == pytest.approx(sum(part for part, _ in parts), abs=1e-4)


def test_a_run_with_an_n_gram_scores_as_static_evaluation(run_of):
    run = run_of("mos+ngram")
    (found,) = harness_model(str(run.folder)).loglikelihood_rolling(
        [request(TEXT)], disable_tqdm=True
    )
    assert found == pytest.approx(-text_nats(run, TEXT)[0], rel=1e-6)


def test_windows_do_not_change_a_number(model, monkeypatch):
    want = model._score([3, 4, 5, 2], [4, 5, 6, 7, 8, 3])
    monkeypatch.setattr("highrank.integrations.lm_eval.WINDOW", 3)
    found = model._score([3, 4, 5, 2], [4, 5, 6, 7, 8, 3])
    assert found == (pytest.approx(want[0], abs=1e-5), want[1])


def test_what_is_generated_is_greedy_and_ends_at_a_stop(loaded, model):
    tokens = generate(
        loaded.model, loaded.vocabulary, ["the", "cat"], num_tokens=30, temperature=0.0
    )[0]
    want = readable(["the", "cat", *tokens])[len("the cat") :]
    options = {"until": [], "max_gen_toks": 30}
    (text,) = model.generate_until([request("the cat", options)], disable_tqdm=True)
    assert text == want
    stop = want[3:5]
    (cut,) = model.generate_until([request("the cat", {"until": [stop]})], disable_tqdm=True)
    assert cut == want[: want.index(stop)]
    ((_, is_greedy),) = model.loglikelihood([request("the cat", want)], disable_tqdm=True)
    assert is_greedy


def test_unknown_tokens_are_counted_and_logged(model, caplog):
    model.loglikelihood_rolling([request("the zebra slept")], disable_tqdm=True)
    assert model.totals.num_unknown == 1
    assert "1 of 3 tokens are outside the vocabulary" in caplog.text


def test_an_exported_run_scores_as_the_run(loaded, model, exported):
    twin = harness_model(str(exported))
    assert (twin.vocabulary, twin.recipe.tokenizer) == (loaded.vocabulary, "words")
    pairs = [request("the old cat", " saw a dog"), request("", "it slept\n")]
    want = model.loglikelihood(pairs, disable_tqdm=True)
    assert twin.loglikelihood(pairs, disable_tqdm=True) == want


def test_an_upgraded_model_scores_as_before(make, tmp_path):
    """Through the harness' own class; its logits are log-probabilities."""
    plain, found = make.plain("gpt2"), []
    for name, made in (("plain", plain), ("mixture", highrank.upgrade(plain, num_components=3))):
        made.save_pretrained(tmp_path / name)
        make.tokenizer(tmp_path / name)
        model = harness_model(str(tmp_path / name))
        assert not isinstance(model, RunLM)
        rolling = model.loglikelihood_rolling([request("w1 w2 w3")], disable_tqdm=True)
        found.append([*rolling, *model.loglikelihood([request("w1", " w2")])[0]])
    assert found[0] == pytest.approx(found[1], abs=1e-3)
