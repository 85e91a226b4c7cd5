"""Dialogues as pairs: the utterances before, and the response.

- plain: an utterance a line, an empty line between dialogues
- DailyDialog (Li et al. 2017): a dialogue a line, `__eou__` after each utterance
- Switchboard as Zhao et al. (2017) have prepared it: a JSON object a line,
  {"utts": [[speaker, text, [act, …]], …]}
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from highrank.data.pairs.reading import Pair, json_lines, lines

END = "__eou__"
# Between the utterances of a context: a token of its own in all byte-level tokenizers.
BREAK = "\n"

Dialogue = list[str]


def read_dialogues(path: Path) -> list[Dialogue]:
    """The dialogues of a file in one of the three forms, which its content tells."""
    if path.suffix in (".jsonl", ".json"):
        found = [_switchboard(path, number, value) for number, value in json_lines(path)]
    else:
        rows = lines(path)
        is_daily = any(END in row for row in rows)
        found = [row.split(END) for row in rows] if is_daily else _plain(rows)
    found = [[" ".join(u.split()) for u in dialogue if u.strip()] for dialogue in found]
    if not any(len(dialogue) > 1 for dialogue in found):
        raise ValueError(f"{path} must have a dialogue of two utterances at least, got none")
    return [dialogue for dialogue in found if dialogue]


def _plain(rows: Iterable[str]) -> list[Dialogue]:
    found: list[Dialogue] = [[]]
    for row in rows:
        if row.strip():
            found[-1].append(row)
        elif found[-1]:
            found.append([])
    return found


def _switchboard(path: Path, number: int, value: object) -> Dialogue:
    utterances = value.get("utts") if isinstance(value, dict) else None
    if not isinstance(utterances, list) or not all(
        isinstance(one, list) and len(one) > 1 and isinstance(one[1], str) for one in utterances
    ):
        raise ValueError(f'{path}, line {number}: must have "utts": [[speaker, text, …], …]')
    return [one[1] for one in utterances]


def dialogue_pairs(dialogues: Iterable[Sequence[str]], context: int = 1) -> list[Pair]:
    """Each utterance but the first of a dialogue, after the last `context` ones before it."""
    if context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    return [
        Pair(BREAK.join(dialogue[max(0, place - context) : place]), dialogue[place])
        for dialogue in dialogues
        for place in range(1, len(dialogue))
    ]
