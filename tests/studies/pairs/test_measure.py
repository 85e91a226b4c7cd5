"""Heads beside each other on pairs: marks, statistics, interruptions."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")
from highrank.progress import silent
from highrank.studies.pairs import measure
from highrank.studies.pairs.measure import make_marks, run_pairs
from highrank.studies.pairs.page import (
    _series,
    answer,
    pairs_page,
    pairs_table,
    title_of,
    verdict,
)
from highrank.studies.pairs.settings import Settings, Variant
from highrank.training.signals import Stopped


def settings_of(place, **changes):
    options = {
        "paths": (str(place / "my.de"), str(place / "my.en")),
        "config": str(place / "tiny"),
        "task": "translation",
        "vocabulary": 300,
        "steps": 4,
        "batch_tokens": 100,
        "seeds": 2,
        "warmup": 2,
        "beam": 2,
        "heads": ("softmax", "linear", "adaptive-mos:2"),
    }
    return Settings(**{**options, **changes})


@pytest.fixture(scope="module")
def result(place):
    return run_pairs(settings_of(place), place / "run", silent)


def test_every_head_is_scored_at_equal_tokens_and_at_equal_time(result):
    for comparison in (result.equal_tokens, result.equal_time):
        assert [row.variant for row in comparison.rows] == list(result.settings.heads)
        for row in comparison.rows:
            assert {"bleu", "bleu_lower", "chrf", "nats", "bits_per_byte"} <= set(row.cells)
            is_baseline = row.variant == "softmax"
            assert all((cell.contrast is None) == is_baseline for cell in row.cells.values())
    assert {row.step for row in result.equal_tokens.rows} == {4}
    for row in result.equal_time.rows:
        each = result.step_seconds[row.variant]
        assert row.step == 1 or 0 <= result.equal_time.at - row.step * each < each * (1 + 1e-6)
    assert result.corpus.num_pairs == {"train": 90, "valid": 5, "test": 5}


def test_models_of_a_seed_read_the_same_tokens(result):
    ends = {(one.seed, one.points[-1].num_targets) for one in result.models if one.num_steps == 4}
    assert len(ends) == 2


def test_a_stopped_training_resumes_to_the_same_numbers(place, result, tmp_path, monkeypatch):
    settings = settings_of(place, heads=("softmax", "linear"), seeds=1)
    times = {name: result.step_seconds[name] for name in settings.heads}
    monkeypatch.setattr(measure, "step_times", lambda *_: times)
    original, calls = measure.PairsTraining.train_step, []

    def train_step(self):
        calls.append(0)
        if len(calls) == 3:
            raise Stopped(15)
        return original(self)

    monkeypatch.setattr(measure.PairsTraining, "train_step", train_step)
    with pytest.raises(Stopped):
        run_pairs(settings, tmp_path / "run", silent)
    found = run_pairs(settings, tmp_path / "run", silent)
    whole = next(one for one in result.models if (one.variant, one.seed) == ("softmax", 0))
    assert found.models[0].scores_at(4).values == whole.scores_at(4).values
    with pytest.raises(ValueError, match="must be new or have the same settings, got steps 4"):
        run_pairs(replace(settings, steps=5), tmp_path / "run", silent)


def test_a_dialogue_has_the_scores_of_the_paper_also_of_unseen_pairs_alone(place, tmp_path):
    options = {"paths": (str(place / "talk"),), "task": "dialogue", "seeds": 1, "steps": 1}
    heads, beams = ("softmax", "moc:2"), {"beam": 3, "best": 2}
    found, cleaned = (
        run_pairs(
            settings_of(place, heads=heads, drop_seen=drop_seen, **options, **beams),
            tmp_path / str(drop_seen),
            silent,
        )
        for drop_seen in (False, True)
    )
    values, want = (one.models[0].scores[-1].values for one in (found, cleaned))
    assert found.corpus.num_seen == {"valid": 0, "test": 1} and cleaned.corpus.is_cleaned
    assert all(want[f"precision_{n}"] <= want[f"recall_{n}"] for n in (1, 2, 3, 4))
    assert values["nats_unseen"] == pytest.approx(want["nats"]) != values["nats"]
    assert values["recall_1_unseen"] == want["recall_1"]
    assert "perplexity per token, unseen pairs" in pairs_page(found, "c")


def test_heads_of_equal_parameters_have_them(place):
    from highrank.integrations.huggingface.pairs.encoding import TextEncoder
    from highrank.integrations.huggingface.pairs.scratch import learn_tokenizer
    from highrank.studies.pairs.corpus import encode_corpus, read_corpus
    from highrank.studies.pairs.variants import Models

    settings = settings_of(place, equal_parameters=True, heads=("softmax", "mos:2"))
    splits, seen = read_corpus(settings)
    tokenizer = learn_tokenizer((text for pair in splits.train for text in pair), 300)
    encoder = TextEncoder(tokenizer=tokenizer, limit=64)
    corpus = encode_corpus(splits, seen, encoder, settings)
    models = Models(settings, None, tokenizer, corpus.encoded["train"])
    plain, mixed = (models.make(name, 0).num_parameters() for name in settings.heads)
    # One unit of the decoder's inner layer has 2 · 16 + 1 parameters.
    assert abs(plain - mixed) <= 33


def test_bytes_are_of_what_is_predicted(place):
    from highrank.data.pairs.reading import Pair, PairSplits
    from highrank.integrations.huggingface.pairs.encoding import TextEncoder
    from highrank.integrations.huggingface.pairs.scratch import learn_tokenizer
    from highrank.studies.pairs.corpus import encode_corpus

    settings, lines = settings_of(place, lower=True), ["one two red blue house"] * 9
    tokenizer = learn_tokenizer(lines, 300, lower=True)
    # İ has two bytes, and three when it is lower-cased. A word is a token here, an end one more.
    pairs = [Pair("one", "İ"), Pair("one", "red " * 12)]
    splits = PairSplits(train=pairs, valid=pairs, test=pairs)
    corpus = encode_corpus(splits, {}, TextEncoder(tokenizer=tokenizer, limit=6), settings)
    assert corpus.test_bytes == (len("i̇".encode()) + 1, len("red red red red red") + 1)
    assert corpus.facts.num_bytes == {"train": 4, "valid": 24, "test": 24}
    assert corpus.facts.num_too_long == 1 and corpus.facts.num_cut == {"valid": 1, "test": 1}


def test_marks_are_where_all_can_be_compared(place):
    times = {"softmax": 1.0, "mos:4": 2.5}
    assert make_marks(settings_of(place), times, 10) == {"softmax": (10, 10), "mos:4": (10, 4)}
    settings = settings_of(place, budget="100s", steps=None, seeds=1, heads=("softmax", "mos:4"))
    assert make_marks(settings, times, None) == {"softmax": (18, 45), "mos:4": (18, 18)}


def test_marks_that_hardly_differ_are_one(place):
    times = {"softmax": 1.0, "moc:4": 1.005, "mos:4": 1.1}
    want = {"softmax": (1000, 1000), "moc:4": (1000, 1000), "mos:4": (1000, 909)}
    assert make_marks(settings_of(place), times, 1000) == want


def test_the_table_and_the_page_open_with_the_answer(result):
    page = pairs_page(result, "highrank finetune")
    assert answer(result).startswith("At equal tokens ")
    assert verdict(result) in page and "nrefs:1|case:lc" in page
    assert "BLEU" in verdict(result) and len(verdict(result).split()) <= 12
    assert len(pairs_table(result).columns) == 1 + len(result.settings.heads)
    assert title_of("adaptive-mos:4") == "Adaptive MoS, K=4"
    assert "after 2 steps of warm-up" in page
    assert page.count("Words of the references: ") == 1
    assert "None of the 5 test pairs stands in train." in page
    default = replace(result, settings=replace(result.settings, warmup=None))
    assert "after 1 steps of warm-up" in pairs_page(default, "highrank finetune")


def test_one_head_beside_the_softmax_is_no_best_of_others(result):
    two = result.equal_tokens.rows[:2]
    text = answer(replace(result, equal_tokens=replace(result.equal_tokens, rows=two)))
    at_tokens, at_time = text.split("At equal time")
    assert "Softmax, linear (a control) has " in at_tokens
    assert ", the best of the others, has " in at_time


def test_one_softmax_alone_is_compared_with_nothing(result):
    first = replace(result.equal_time, rows=result.equal_time.rows[:1])
    settings = replace(result.settings, heads=("softmax",))
    alone = replace(result, settings=settings, equal_time=first)
    assert answer(alone).startswith("One softmax has ") and answer(alone).endswith("test pairs.")
    page = pairs_page(alone, "highrank finetune")
    assert "steps, all" in page and "Better and worse" not in page
    assert "Better and worse" in pairs_page(result, "highrank finetune")


def test_large_perplexities_have_separators(result):
    row = result.equal_time.rows[0]
    cells = row.cells | {"perplexity": replace(row.cells["perplexity"], mean=1234.5, values=())}
    rows = (replace(row, cells=cells), *result.equal_time.rows[1:])
    changed = replace(result, equal_time=replace(result.equal_time, rows=rows))
    assert "1,234.50" in pairs_page(changed, "highrank finetune")


def test_a_short_training_has_a_short_warm_up(place):
    """The same for all models: a quarter of their steps at equal tokens."""
    settings = settings_of(place, warmup=None)
    assert [settings.warmup_steps(steps) for steps in (3, 80, 12_000)] == [0, 20, 600]
    assert settings_of(place, warmup=50).warmup_steps(80) == 50


def test_every_head_has_a_curve_of_its_own(result):
    names = ("softmax", *(f"mos:{k}" for k in range(2, 9)))
    models = [replace(one, variant=name) for name in names for one in result.models[:1]]
    series = list(
        _series(
            replace(
                result,
                settings=replace(result.settings, heads=names),
                models=tuple(models),
                step_seconds=dict.fromkeys(names, 1.0),
            ),
            by_time=True,
        )
    )
    assert [one.label for one in series] == list(map(title_of, names))
    assert len({str(one.style) for one in series}) == len(names)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"heads": ("mos:4",)}, "heads must begin with softmax"),
        ({"heads": ("softmax", "mos:x")}, "a head must be like softmax or mos:4, got mos:x"),
        ({"label_smoothing": 1.0}, "label-smoothing must be at least 0 and below 1"),
        ({"heads": ("softmax", "mos", "mos:4")}, "heads must begin with softmax, and have each"),
        ({"heads": ("softmax", "doc:3")}, "heads must need the decoder's last hidden state only"),
        ({"heads": ("softmax", "mos+pointer:2")}, "last hidden state only, got mos.pointer"),
        ({"heads": ("softmax", "mox:4")}, "heads must be linear or kinds: .*, got 'mox'"),
        (
            {"config": None, "heads": ("softmax", "moc:4")},
            "heads of a pretrained model must be softmax, linear, mos, .* got moc:4",
        ),
        ({"source_lang": "de"}, "source-lang must go with a pretrained model, got --config"),
        ({"paths": ()}, "pairs must be given"),
        ({"budget": "20"}, "must have a unit"),
    ],
)
def test_mistakes_are_found_before_any_work(place, changes, message):
    with pytest.raises(ValueError, match=message):
        settings_of(place, **changes)


def test_two_files_are_no_dialogues(place):
    """They were read as one dialogue each: of sources alone, and of targets alone."""
    from highrank.studies.pairs.corpus import read_corpus

    with pytest.raises(ValueError, match="dialogues must be one file, or a folder .*my.de .*my.en"):
        read_corpus(settings_of(place, task="dialogue"))


def test_a_head_has_its_number_of_components():
    assert Variant.parse("mos") == ("mos", 4) and Variant.parse("softmax") == ("softmax", 1)
