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
from highrank.integrations.huggingface.pairs.encoding import TextEncoder


def has_components(model: Any) -> bool:
    """Whether the model was upgraded to a mixture of more than one softmax."""
    output = model.get_output_embeddings()
    head = output.head if isinstance(output, HeadOutputLayer) else None
    return isinstance(head, MixtureHead) and head.num_components > 1


@torch.no_grad()
def responsibilities(model: Any, encoder: TextEncoder, source: str, ids: Sequence[int]) -> Tensor:
    """Fractions (L, K) of each target token's probability that the components answer for.

    Args:
        model: in evaluation mode.
        ids: of the target, (L,).
    """
    output = model.get_output_embeddings()
    assert isinstance(output.head, MixtureHead)
    start = model.generation_config.decoder_start_token_id
    kept: list[Tensor] = []
    hook = output.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        model(
            input_ids=torch.tensor(encoder.sources([source]).ids, device=model.device),
            decoder_input_ids=torch.tensor([[start, *ids[:-1]]], device=model.device),
            use_cache=False,
        )
    finally:
        hook.remove()
    states = kept[0][0].float() * output.scale  # (L, D)
    target = torch.tensor(ids, device=model.device)  # (L,)
    found: Tensor = log_responsibility(output.head, states, target).exp()
    return found


def word_components(
    model: Any, encoder: TextEncoder, source: str, ids: Sequence[int]
) -> list[tuple[str, int]]:
    """The words of a target, each with the component, from 0, that has most of its tokens."""
    shares = responsibilities(model, encoder, source, ids)  # (L, K)
    words: list[tuple[str, Tensor]] = []
    before = ""
    for place, share in enumerate(shares):
        text = encoder.tokenizer.decode(list(ids[: place + 1]), skip_special_tokens=True)
        piece, before = text[len(before) :], text
        if words and not piece[:1].isspace():
            words[-1] = (words[-1][0] + piece, words[-1][1] + share)
        elif piece:
            words.append((piece.strip(), share))
    return [(word, int(share.argmax())) for word, share in words if word]
