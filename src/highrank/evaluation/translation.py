"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) of translations, by sacrebleu (Post 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from highrank.environment import install_hint


@dataclass(frozen=True, kw_only=True)
class TranslationScore:
    """Scores of a whole text, in per cent, with everything one needs to make them again."""

    bleu: float
    precisions: tuple[float, ...]
    """Of 1- to 4-grams, in per cent."""
    brevity_penalty: float
    length: int
    """Words of the translations."""
    reference_length: int
    """Words of the references: another tokenisation has another length."""
    signature: str
    """sacrebleu's, of BLEU."""
    chrf: float
    chrf_signature: str


def translation_score(
    translations: Sequence[str], references: Sequence[str], *, lower: bool = False
) -> TranslationScore:
    """Corpus scores with one reference each, tokenised by sacrebleu's 13a.

    Args:
        lower: whether case is ignored.
    """
    if len(translations) != len(references) or not references:
        found = f"{len(translations)} and {len(references)}"
        raise ValueError(f"translations and references must be as many, one at least, got {found}")
    metrics = _metrics()
    bleu, chrf = metrics.BLEU(lowercase=lower, tokenize="13a"), metrics.CHRF(lowercase=lower)
    found = bleu.corpus_score(list(translations), [list(references)])
    other = chrf.corpus_score(list(translations), [list(references)])
    return TranslationScore(
        bleu=found.score,
        precisions=tuple(found.precisions),
        brevity_penalty=found.bp,
        length=found.sys_len,
        reference_length=found.ref_len,
        signature=str(bleu.get_signature()),
        chrf=other.score,
        chrf_signature=str(chrf.get_signature()),
    )


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        hint = install_hint("seq2seq")
        raise ValueError(f"sacrebleu must be installed to score translations: {hint}") from None
    return metrics
