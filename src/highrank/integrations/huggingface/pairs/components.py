"""Which component of a mixture is responsible for each word that an encoder–decoder writes.

L tokens of a target, K components.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from highrank.heads import MixtureHead
from highrank.heads.bases.mixture import log_responsibility
from highrank.integrations.huggingface.output_layer import HeadOutputLayer
from highrank.integrations.huggingface.pairs.trainable import TrainablePairs


def has_components(model: Any) -> bool:
    """Whether the model was upgraded to a mixture of more than one softmax."""
    output = model.get_output_embeddings()
    head = output.head if isinstance(output, HeadOutputLayer) else None
    return isinstance(head, MixtureHead) and head.num_components > 1


@torch.no_grad()
def responsibilities(model: Any, tokenizer: Any, source: str, ids: Sequence[int]) -> Tensor:
    """Fractions (L, K) of each target token's probability that the components answer for."""
    inputs = tokenizer([source], truncation=True, return_tensors="pt", verbose=False)
    columns = {name: inputs[name].T.to(model.device) for name in ("input_ids", "attention_mask")}
    target = torch.tensor(ids, device=model.device)[:, None]  # (L, 1)
    trainable = TrainablePairs(model).eval()
    states = trainable.states(columns, target)  # (L, D)
    head = trainable.head
    assert isinstance(head, MixtureHead)
    found: Tensor = log_responsibility(head, states, target[:, 0]).exp()
    return found


def word_components(
    model: Any, tokenizer: Any, source: str, ids: Sequence[int]
) -> list[tuple[str, int]]:
    """The words of a target, each with the component, from 0, that has most of its tokens."""
    shares = responsibilities(model, tokenizer, source, ids)  # (L, K)
    words: list[tuple[str, Tensor]] = []
    before = ""
    for place, share in enumerate(shares):
        text = tokenizer.decode(list(ids[: place + 1]), skip_special_tokens=True)
        piece, before = text[len(before) :], text
        if words and not piece[:1].isspace():
            words[-1] = (words[-1][0] + piece, words[-1][1] + share)
        elif piece:
            words.append((piece.strip(), share))
    return [(word, int(share.argmax())) for word, share in words if word]
