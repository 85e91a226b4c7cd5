"""BLEU and chrF as sacrebleu has them, with what one needs to make them again."""

import pytest

sacrebleu = pytest.importorskip("sacrebleu")
from highrank.evaluation.translation import translation_score  # noqa: E402

REFERENCES = ["A man is riding a horse.", "Two dogs run through the snow."]
TRANSLATIONS = ["a man is riding a horse .", "Two dogs run in the snow."]


def test_scores_are_those_of_sacrebleu():
    found = translation_score(TRANSLATIONS, REFERENCES)
    assert found.bleu == sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score
    assert found.chrf == sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score
    assert "case:mixed" in found.signature and "tok:13a" in found.signature
    assert found.reference_length == 14 and found.length == 14


def test_case_can_be_ignored():
    lower = translation_score([text.upper() for text in REFERENCES], REFERENCES, lower=True)
    assert lower.bleu == pytest.approx(100) and "case:lc" in lower.signature
    assert translation_score(TRANSLATIONS, REFERENCES).bleu < 70


def test_there_is_a_reference_for_each_translation():
    with pytest.raises(ValueError, match="as many, one at least, got 1 and 2"):
        translation_score(TRANSLATIONS[:1], REFERENCES)
