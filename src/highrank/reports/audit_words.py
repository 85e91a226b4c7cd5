"""Words of a vocabulary, which may hold anything, as something that can be read on one line."""

import unicodedata
from collections import Counter
from collections.abc import Sequence

from highrank.experiments.audit_result import ModelAudit

SPACE, NEWLINE = "␣", "⏎"
# How byte-level and SentencePiece vocabularies write a space, a newline and a tab.
MARKS = str.maketrans({"Ġ": SPACE, "▁": SPACE, "Ċ": NEWLINE, "ĉ": "\\t"})
MAX_LENGTH = 24
MAX_CONTEXT = 120
MAX_NAME = 28
# Of unicodedata: control, format (those that turn the direction of text, too), surrogate, private,
# unassigned, separators of lines and paragraphs.
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def legible(word: str, source: str, max_length: int = MAX_LENGTH) -> str:
    """The word with its spaces and unseen characters made visible, cut where it is long.

    Args:
        source: of the model; a Hugging Face vocabulary has signs of its own for white space.
    """
    if not word:
        return "(empty)"
    marked = word.translate(MARKS) if source == "Hugging Face" else word
    shown = "".join(map(_visible, marked.replace(" ", SPACE)))
    if unicodedata.category(shown[0]).startswith("M"):
        # A mark needs something to stand on.
        shown = "◌" + shown
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def legible_context(text: str) -> str:
    """The end of a context, with its spaces as they are."""
    shown = "".join(map(_visible, " ".join(text.replace("\n", f" {NEWLINE} ").split())))
    return shown if len(shown) <= MAX_CONTEXT else "…" + shown[1 - MAX_CONTEXT :]


def short_names(models: Sequence[ModelAudit]) -> tuple[str, ...]:
    """The last part of each model's path or address, or all of it where that is not unique."""
    last = [model.name.rstrip("/").rsplit("/", 1)[-1] for model in models]
    # matplotlib takes a name that starts with _ for one that is not to be shown.
    last = [f"…/{name}" if name.startswith("_") else name for name in last]
    count, seen, names = Counter(last), Counter[str](), []
    for model, name in zip(models, last, strict=True):
        shown = _shortened(legible(name if count[name] == 1 else _all_of(model), "run", 200))
        seen[shown] += 1
        names.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return tuple(names)


def _all_of(model: ModelAudit) -> str:
    return f"…/{model.name}" if model.name.startswith("_") else model.name


def _shortened(name: str) -> str:
    """Cut in the middle: models of a family differ at the end."""
    half = MAX_NAME // 2
    return name if len(name) <= MAX_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _visible(character: str) -> str:
    if character == "\n":
        return NEWLINE
    if unicodedata.category(character) in UNSEEN:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    # The other spaces: no-break, thin, ideographic.
    return SPACE if character.isspace() and character != " " else character
