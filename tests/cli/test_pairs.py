"""`highrank finetune --task`, `translate` and `chat`: from two files to a table and answers."""

import io
import json
import sys
from unittest.mock import ANY

import pytest

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")
from highrank.cli.main import main

WORDS = {"eins": "one", "zwei": "two", "rot": "red", "Haus": "house"}


@pytest.fixture(scope="module")
def trained_pairs(tmp_path_factory):
    """A folder with two files, a configuration, and the models of a training, `run`."""
    from transformers import PegasusConfig

    place = tmp_path_factory.mktemp("pairs")
    rows = [(a, b, c) for a in WORDS for b in WORDS for c in WORDS]
    (place / "my.de").write_text("".join(" ".join(row) + "\n" for row in rows))
    (place / "my.en").write_text("".join(" ".join(WORDS[w] for w in row) + "\n" for row in rows))
    sizes = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_layers": 1}
    sizes |= {"decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    PegasusConfig(**sizes, max_position_embeddings=64).save_pretrained(place / "tiny")
    # Here rather than in the first test: another process may run the others.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["highrank", *map(str, arguments(place))])
        main()
    return place


def stdin(monkeypatch, text):
    content = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def arguments(place):
    options = ["--vocabulary", 300, "--steps", 2, "--batch-tokens", 200, "--beam", 2]
    options += ["--heads", "softmax", "mos:2", "--threads", 1, "--out", place / "run"]
    files = [place / "my.de", place / "my.en"]
    return ["finetune", *files, "--task", "translation", "--config", place / "tiny", *options]


def test_two_files_become_a_table_a_page_and_numbers(highrank, trained_pairs):
    code, text, _ = highrank(*arguments(trained_pairs))
    assert code == 0 and "BLEU, case ignored" in text and "MoS, K=2" in text
    numbers = json.loads((trained_pairs / "run" / "finetune.json").read_text())
    assert [one["variant"] for one in numbers["models"]] == ["softmax", "mos:2"]
    assert "nrefs:1" in (trained_pairs / "run" / "finetune.html").read_text()
    # Everything is there: nothing is trained again.
    code, text, _ = highrank(*arguments(trained_pairs), "--json")
    assert json.loads(text)["equal_time"] == numbers["equal_time"]


def test_a_pretrained_model_starts_with_the_same_predictions(highrank, trained_pairs, tmp_path):
    files = [trained_pairs / "my.de", trained_pairs / "my.en"]
    options = ["--steps", 1, "--lr", 1e-9, "--head-lr", 1e-9, "--beam", 2, "--threads", 1]
    options += ["--out", tmp_path / "run", "--json"]
    model = trained_pairs / "run" / "softmax-0"
    code, text, _ = highrank("finetune", model, *files, "--task", "translation", *options)
    rows = json.loads(text)["equal_tokens"]["rows"]
    nats = [row["cells"]["nats"]["mean"] for row in rows]
    assert [row["variant"] for row in rows] == ["softmax", "linear", "mos:4"]
    assert code == 0 and nats == pytest.approx(nats[:1] * 3, abs=1e-4)


def test_each_line_is_translated(highrank, trained_pairs, tmp_path):
    (tmp_path / "in.txt").write_text("eins rot\n\nzwei\n")
    model = trained_pairs / "run" / "mos-2-0"
    code, text, _ = highrank("translate", model, tmp_path / "in.txt", "--threads", 1)
    assert code == 0 and len(text.split("\n")) == 4 and text.split("\n")[1] == ""
    code, text, _ = highrank(
        "translate", model, tmp_path / "in.txt", "--beam", 3, "--best", 2, "--json"
    )
    found = [json.loads(line) for line in text.splitlines()]
    assert [one["source"] for one in found] == ["eins rot", "", "zwei"]
    assert [len(one["hypotheses"]) for one in found] == [2, 0, 2]
    assert all(h["log_prob"] < 0 for one in found for h in one["hypotheses"])


def test_a_conversation_shows_the_component_of_each_word(highrank, trained_pairs, monkeypatch):
    model = trained_pairs / "run" / "mos-2-0"

    stdin(monkeypatch, "eins\n\nzwei rot\n")
    code, text, _ = highrank("chat", model, "--show-components", "--threads", 1)
    assert code == 0 and len(text.splitlines()) == 2
    words = text.split()
    assert all(word.rpartition("/")[2] in ("1", "2") for word in words)
    # Longer than the 64 positions of the model.
    stdin(monkeypatch, "eins " * 99 + "\n")
    code, text, _ = highrank("chat", model, "--show-components", "--max-words", 2)
    assert code == 0 and len(text.split()) <= 2
    stdin(monkeypatch, "eins\n")
    code, _, error = highrank("chat", trained_pairs / "run" / "softmax-0", "--show-components")
    assert code == 2 and "show-components must go with a mixture of softmaxes" in error


def test_standard_input_is_translated_and_what_is_cut_is_named(
    highrank, trained_pairs, monkeypatch
):
    # The model has 64 positions.
    stdin(monkeypatch, "eins rot\n\n" + "zwei " * 99)
    code, text, error = highrank("translate", trained_pairs / "run" / "mos-2-0", "--threads", 1)
    assert code == 0 and len(text.splitlines()) == 3 and text.splitlines()[1] == ""
    assert "Line 3 has more than the model's 64 tokens" in error and "Line 1" not in error


def test_lines_that_are_not_utf_8_are_named(highrank, trained_pairs, monkeypatch):
    stdin(monkeypatch, "eins \N{REPLACEMENT CHARACTER}\r\n".encode() + b"zwei \xff\nrot")
    code, text, error = highrank("translate", trained_pairs / "run" / "mos-2-0", "--threads", 1)
    assert code == 0 and len(text.splitlines()) == 3
    assert "Line 2 is not UTF-8" in error and "Line 1 " not in error and "Line 3 " not in error


def test_a_conversation_remembers_as_many_utterances_as_the_training(
    highrank, trained_pairs, monkeypatch
):
    from highrank.integrations.huggingface.pairs import decoding

    seen, decode = [], decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda *a, **k: (seen.append(a[2]), decode(*a, **k))[1])
    model = trained_pairs / "run" / "softmax-0"

    def sources(*options):
        seen.clear()
        stdin(monkeypatch, "eins\nzwei\n")
        code, _, _ = highrank("chat", model, "--threads", 1, "--max-words", 3, *options)
        assert code == 0
        return [one[0].split("\n") for one in seen]

    assert sources() == [["eins"], ["zwei"]]
    assert sources("--context", 3) == [["eins"], ["eins", ANY, "zwei"]]
    path = model / "variant.json"
    saved = path.read_text()
    path.write_text(json.dumps(json.loads(saved) | {"context": 2}))
    assert sources() == [["eins"], [ANY, "zwei"]]
    path.write_text(saved)


def test_drawn_answers_depend_on_the_seed(highrank, trained_pairs, monkeypatch):
    def drawn(seed):
        stdin(monkeypatch, "eins\n")
        options = ["--temperature", 2, "--seed", seed, "--max-words", 3]
        return highrank("chat", trained_pairs / "run" / "softmax-0", *options)[1]

    assert drawn(0) == drawn(0) != drawn(1)


def test_a_model_that_reads_one_text_is_refused(highrank, tmp_path):
    from transformers import GPT2Config

    GPT2Config(n_layer=1).save_pretrained(tmp_path)
    code, _, error = highrank("translate", tmp_path, tmp_path / "config.json")
    assert code == 2 and "must be an encoder–decoder to read pairs" in error


def test_what_is_no_model_is_named(highrank, trained_pairs, monkeypatch):
    def answer(name):
        raise HubError("no answer")

    from highrank.integrations.huggingface import reader
    from highrank.integrations.huggingface.reader import HubError

    monkeypatch.setattr(reader, "hub_answers", answer)
    run, file = trained_pairs / "run", trained_pairs / "my.de"
    for name, message in (
        (run, f"got {run}: it has {run / 'mos-2-0'}, {run / 'softmax-0'}"),
        (file, f"got the file {file}"),
        ("a/b/c", "must be a folder or a name on the hub, got a/b/c"),
        ("runs/nothing", "got runs/nothing: there is no such folder here, and no answer"),
    ):
        for command in (["translate", name, file], ["chat", name]):
            code, _, error = highrank(*command)
            assert code == 2 and message in error.replace("\n", " ")


@pytest.mark.parametrize("command", ["evaluate", "generate", "audit", "check"])
def test_commands_for_one_text_name_those_for_pairs(command, highrank, trained_pairs):
    code, _, error = highrank(command, trained_pairs / "run" / "mos-2-0")
    assert code == 2 and "highrank translate, chat and finetune --task take it" in error


def test_pairs_without_a_model_say_what_is_missing(highrank, trained_pairs):
    files = [trained_pairs / "my.de", trained_pairs / "my.en"]
    code, _, error = highrank("finetune", *files, "--task", "translation")
    assert code == 2 and "a model, or --config transformer-tiny, must be given before" in error
    assert f"got the file {files[0]}" in error


def test_missing_pairs_are_named_before_any_work(highrank, tmp_path):
    options = ["--task", "translation", "--config", "transformer-tiny", "--out", tmp_path / "run"]
    code, _, error = highrank("finetune", "missing.de", "missing.en", *options)
    assert code == 2 and "got missing.de, which does not exist" in error
    assert not (tmp_path / "run").exists()
