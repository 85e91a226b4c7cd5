"""lm-evaluation-harness: its numbers are those of `highrank evaluate`, each per its own unit."""

import json
import math
import random
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lm_eval")
import lm_eval
from lm_eval.tasks import TaskManager

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.prepare import prepare_text
from highrank.data.text import tokenized_lines
from highrank.data.tokenizer import readable
from highrank.evaluation.static import evaluate
from highrank.generation import generate
from highrank.integrations.lm_eval import RunLM, harness_model
from highrank.run import load_run
from highrank.training.loop import Run

WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"]
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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("harness")
    rng = random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(120))
    (place / "tale.txt").write_text("\n".join(lines))
    corpus = prepare_text(place / "tale.txt", cache=place / "cache").corpus
    config = RunConfig(
        corpus=str(corpus.path),
        model=ModelConfig(embedding_size=8, hidden_sizes=(10, 8)),
        head=HeadConfig(num_components=2),
        batch=BatchConfig(batch_size=8, bptt=20),
        train=StageConfig(optimizer="adamw", lr=1e-2, epochs=1, clip=1.0),
        valid_batch_size=2,
    )
    Run(config, corpus, place / "run").go()
    return load_run(place / "run")


@pytest.fixture
def model(run):
    return harness_model(str(run.folder))


def request(*arguments):
    return SimpleNamespace(args=arguments)


def text_nats(run, text):
    """Of a text that ends with a newline, and its number of tokens."""
    lines = tokenized_lines(text, run.corpus.header.recipe)
    ids = run.vocabulary.encode(["<eos>", *(token for line in lines for token in line)])
    found = evaluate(run.model, ids, 1)
    return found.nats * found.num_tokens, found.num_tokens


def test_the_harness_divides_our_sum_by_its_own_counts(run, model, tmp_path):
    (tmp_path / "tale.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    (tmp_path / "tale.yaml").write_text(TASK.format(path=tmp_path / "tale.jsonl"))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=["tale"], task_manager=tasks)
    metrics = found["results"]["tale"]
    nats, num_tokens = text_nats(run, TEXT)
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


def test_windows_do_not_change_a_number(model, monkeypatch):
    want = model._score([3, 4, 5, 2], [4, 5, 6, 7, 8, 3])
    monkeypatch.setattr("highrank.integrations.lm_eval.WINDOW", 3)
    found = model._score([3, 4, 5, 2], [4, 5, 6, 7, 8, 3])
    assert found == (pytest.approx(want[0], abs=1e-5), want[1])


def test_what_is_generated_is_greedy_and_ends_at_a_stop(run, model):
    tokens = generate(run.model, run.vocabulary, ["the", "cat"], num_tokens=30, temperature=0.0)[0]
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


def test_an_exported_run_scores_as_the_run(run, model, tmp_path):
    from highrank.integrations.huggingface.export import export_run

    exported = harness_model(str(export_run(run, tmp_path / "export").folder))
    assert (exported.vocabulary, exported.recipe.tokenizer) == (run.vocabulary, "words")
    pairs = [request("the old cat", " saw a dog"), request("", "it slept\n")]
    want = model.loglikelihood(pairs, disable_tqdm=True)
    assert exported.loglikelihood(pairs, disable_tqdm=True) == want


def test_an_upgraded_model_scores_as_before(tmp_path):
    """Through the harness' own class; its logits are log-probabilities."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    import highrank

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({sign: i for i, sign in enumerate(letters)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=letters[0])
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    plain = GPT2LMHeadModel(config)
    for name in ("plain", "mixture"):
        tokenizer.save_pretrained(tmp_path / name)
    plain.save_pretrained(tmp_path / "plain")
    highrank.upgrade(plain, num_components=3).save_pretrained(tmp_path / "mixture")
    found = []
    for name in ("plain", "mixture"):
        model = harness_model(str(tmp_path / name))
        assert not isinstance(model, RunLM)
        rolling = model.loglikelihood_rolling([request("the cat saw")], disable_tqdm=True)
        found.append([*rolling, *model.loglikelihood([request("the", " cat")])[0]])
    assert found[0] == pytest.approx(found[1], abs=1e-3)
