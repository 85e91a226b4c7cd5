"""Write a run as a Hugging Face folder: weights, configuration, tokenizer and model card."""

from pathlib import Path
from typing import NamedTuple

import torch

from highrank.data.token_counts import read_counts
from highrank.files import new_folder, read_json
from highrank.heads import head_arguments
from highrank.integrations.export.card import model_card
from highrank.integrations.export.model import AWDLSTMConfig, AWDLSTMForCausalLM
from highrank.integrations.export.tokenizer import RunTokenizer, make_tokenizer
from highrank.integrations.library import quiet_transformers
from highrank.models.weights import load_state, save_state
from highrank.run.configuration import config_to_json
from highrank.run.loading import LoadedRun

CARD_FILE = "README.md"
# Tokens on which the written folder is compared with the run.
NUM_CHECKED = 16


class Export(NamedTuple):
    folder: Path
    files: tuple[str, ...]
    num_parameters: int


def export_run(loaded: LoadedRun, target: Path, replace: bool = False) -> Export:
    """Write the run's best model; the folder is there completely, or not at all.

    It is read again and compared with the run before it takes its place.

    Args:
        replace: whether an earlier export in `target` may be replaced.
    """
    check_target(target, replace)
    tokenizer = make_tokenizer(loaded.vocabulary, loaded.corpus.header.recipe)
    model = make_model(loaded)
    with quiet_transformers("export a run"), new_folder(target, replace=True) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / CARD_FILE).write_text(model_card(loaded), encoding="utf-8")
        _check(folder, loaded)
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return Export(target, files, sum(p.numel() for p in model.parameters()))


def make_model(loaded: LoadedRun) -> AWDLSTMForCausalLM:
    """The run's best model as one of transformers, in evaluation mode."""
    config, vocabulary = loaded.config, loaded.vocabulary
    wants_counts = "token_counts" in head_arguments(config.head.kind)
    model = AWDLSTMForCausalLM(
        AWDLSTMConfig(
            run=config_to_json(config),
            vocab_size=len(vocabulary),
            token_counts=read_counts(loaded.folder, len(vocabulary)) if wants_counts else None,
            hidden_size=loaded.model.backbone.layer_sizes[-1],
            num_hidden_layers=len(loaded.model.backbone.layer_sizes) - 1,
            bos_token_id=vocabulary.eos,
            pad_token_id=vocabulary.eos,
            tie_word_embeddings=config.model.tied,
        )
    )
    load_state(model.language_model, save_state(loaded.model))
    # As `highrank generate`: sampled, without cuts.
    model.generation_config.update(do_sample=True, top_k=0)
    model.eval()
    return model


def check_target(target: Path, replace: bool) -> None:
    """Raise unless the folder is new, empty, or an export that may be replaced."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not replace:
        raise ValueError(
            f"the export's folder must be new, got {target}: choose another, or replace an earlier "
            "export with --force"
        )
    config = target / "config.json"
    content = read_json(config) if config.is_file() else None
    if not isinstance(content, dict) or content.get("model_type") != AWDLSTMConfig.model_type:
        raise ValueError(f"only an earlier export can be replaced, got {target}, which is none")


@torch.no_grad()
def _check(folder: Path, loaded: LoadedRun) -> None:
    """What was written predicts as the run does, and spells as it does."""
    model, read = AWDLSTMForCausalLM.from_pretrained(folder), loaded.model
    ids = torch.arange(NUM_CHECKED)[:, None] % len(loaded.vocabulary)  # (T, 1)
    ids = ids.to(next(read.parameters()).device)
    found = read.read(ids, read.initial_state(1))
    want = read.head.log_prob(found.hidden, **found.past)[:, 0]  # (T, V)
    got = model.eval()(ids.T.cpu()).logits[0]
    assert (got - want.cpu()).abs().max() <= 1e-5, "the written model differs from the run"
    tokens = RunTokenizer.from_pretrained(folder).get_vocab()
    assert len(tokens) == len(loaded.vocabulary), (len(tokens), len(loaded.vocabulary))
