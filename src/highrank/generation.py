"""Write text with a language model, several samples side by side. T time, B samples."""

from collections.abc import Sequence

import torch

from highrank.data.vocabulary import Vocabulary
from highrank.models.language_model import LanguageModel
from highrank.ops.sampling import check_sampling


@torch.no_grad()
def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: Sequence[str] = (),
    *,
    num_words: int = 50,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> list[list[str]]:
    """Samples of words that follow the prompt; an empty prompt starts a line."""
    check_sampling(temperature, top_k, top_p)
    was_training = model.training
    model.eval()
    try:
        device = next(model.parameters()).device
        generator = torch.Generator(device).manual_seed(seed)
        ids = vocabulary.encode(prompt or ["<eos>"])
        words = torch.tensor(ids, device=device)[:, None].expand(-1, num_samples)  # (T, B)
        state, written = model.initial_state(num_samples), []
        for _ in range(num_words):
            hidden, _, state = model.backbone(words, state)
            new = model.head.sample(hidden[-1], temperature, top_k, top_p, generator)  # (B,)
            written.append(new)
            words = new[None]  # (1, B)
        columns = torch.stack(written, 1).tolist()
        return [vocabulary.decode(column) for column in columns]
    finally:
        model.train(was_training)
