"""Text of a causal language model of Hugging Face, by its own `generate`."""

from typing import Any, NamedTuple

import torch

from highrank.generation import Sampling
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.reader import HuggingFaceModel


class GeneratedText(NamedTuple):
    text: str
    """The prompt and what follows it."""
    tokens: list[str]
    """The tokens that follow, as the tokenizer writes them."""


def generate_text(
    model: HuggingFaceModel,
    prompt: str,
    sampling: Sampling,
    *,
    num_tokens: int,
    num_samples: int = 1,
    device: str = "cpu",
) -> list[GeneratedText]:
    """Samples that follow the prompt, or the token with which the model's texts begin.

    They are shorter than `num_tokens` where the model ends its text.
    """
    tokenizer = model.tokenizer
    ids = model.prefix + model.encode(prompt)
    start = tokenizer.bos_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if not ids and start is None:
        raise ValueError(
            f"--prompt must be given for {model.name}, whose texts have no first token"
        )
    ids = ids or [start]
    if model.max_window is not None and len(ids) + num_tokens > model.max_window:
        raise ValueError(
            f"the prompt and num-tokens must be at most {model.max_window} tokens together for "
            f"{model.name}, got {len(ids)} and {num_tokens}"
        )
    torch.manual_seed(sampling.seed)
    loaded = model.load_weights(device)
    with quiet_transformers("generate text"), torch.no_grad():
        tokens = torch.tensor([ids], device=device)
        found = loaded.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=num_tokens,
            num_return_sequences=num_samples,
            **_options(sampling, tokenizer),
        )
    new = [[int(i) for i in row] for row in found[:, len(ids) :]]
    return [
        GeneratedText(
            prompt + tokenizer.decode(row, skip_special_tokens=True),
            [model.token(index) for index in row],
        )
        for row in new
    ]


def _options(sampling: Sampling, tokenizer: Any) -> dict[str, Any]:
    """The arguments of transformers: without its own defaults, which cut to 50 tokens."""
    pad = tokenizer.pad_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    options: dict[str, Any] = {"pad_token_id": pad, "num_beams": 1}
    if sampling.no_unk and tokenizer.unk_token_id is not None:
        options["suppress_tokens"] = [tokenizer.unk_token_id]
    if sampling.temperature == 0:
        return options | {"do_sample": False}
    return options | {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
    }
