"""Write a run as a Hugging Face folder: weights, configuration, tokenizer and model card.

The card has what the model is, what it was trained on, what was measured, and how to load it.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from highrank.data.tokenizer import unit_of
from highrank.environment import environment
from highrank.files import new_folder, read_json
from highrank.heads import head_arguments
from highrank.integrations.huggingface.config import AWDLSTMConfig
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.run_model import AWDLSTMForCausalLM
from highrank.integrations.huggingface.run_tokenizer import RunTokenizer, make_tokenizer
from highrank.models.weights import load_state, save_state
from highrank.run import METRICS_FILE, LoadedRun, config_to_json, read_counts

CARD_FILE = "README.md"
# Tokens on which the written folder is compared with the run.
NUM_CHECKED = 16


LOAD = """```python
import highrank
from transformers import AutoModelForCausalLM, AutoTokenizer

highrank.register()  # the model type
tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}")
inputs = tokenizer("{prompt}", return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=50)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))
```"""

NOTES = """The model has a state instead of a window: it reads texts of any length. Its logits are
normalised log-probabilities of the whole mixture, so temperature and cuts act on the mixture. A
text starts after the end of a line, which the tokenizer puts before it; every newline is the end of
one, and `generate` does not stop there. Padding is the same token, and is neither read nor
predicted where `attention_mask` is 0; a data collator that ignores padding in the loss also ignores
the ends of lines."""
SIGMA = "Texts are lower-cased letter by letter: a Greek sigma that ends a word becomes σ, not ς."


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
            hidden_size=config.model.hidden_sizes[-1],
            num_hidden_layers=len(config.model.hidden_sizes),
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


class Metric(NamedTuple):
    split: str
    method: str
    """With its settings."""
    value: float
    unit: str


def model_card(loaded: LoadedRun) -> str:
    """Markdown with a header in YAML."""
    parts = [_header(loaded), _summary(loaded), _data(loaded), _metrics(loaded), _usage(loaded)]
    return "\n\n".join(parts) + "\n"


def metrics_of(loaded: LoadedRun) -> list[Metric]:
    """What the log and the results of `highrank evaluate` have about this very model."""
    unit = f"perplexity per {unit_of(loaded.corpus.header.recipe.tokenizer)}"
    return [*_logged(loaded, unit), *_evaluated(loaded)]


def _logged(loaded: LoadedRun, unit: str) -> Iterator[Metric]:
    events = _events(loaded.folder / METRICS_FILE)
    epochs = [event["valid_loss"] for event in events if event.get("event") == "epoch"]
    end = events[-1] if events and events[-1].get("event") == "end" else {}
    if epochs:
        valid = end.get("valid_loss", min(epochs))
        method = f"static, batch size {loaded.config.valid_batch_size}"
        yield Metric("valid", method, math.exp(valid), unit)
    if "test_loss" in end:
        method = f"static, batch size {end.get('test_batch_size', 1)}"
        yield Metric("test", method, math.exp(end["test_loss"]), unit)


def _events(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _evaluated(loaded: LoadedRun) -> Iterator[Metric]:
    for path in sorted((loaded.folder / "results").glob("*.json")):
        found = read_json(path)
        if not isinstance(found, dict) or found.get("model_sha256") != loaded.sha256:
            continue
        used = {key: value for key, value in found["settings"].items() if value is not None}
        settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in used.items())
        yield Metric(
            found["split"], f"{found['method']}, {settings}", found["value"], found["unit"]
        )


def _header(loaded: LoadedRun) -> str:
    name, kind = loaded.folder.resolve().name, loaded.config.head.kind
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": loaded.corpus.name, "type": "text", "split": metric.split},
            "metrics": [
                {
                    "type": "perplexity",
                    "name": f"{metric.unit}, {metric.method}",
                    "value": round(metric.value, 2),
                }
            ],
        }
        for metric in metrics_of(loaded)
    ]
    fields = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["highrank", "awd-lstm", kind],
        "model-index": [{"name": name, "results": results}],
    }
    # JSON is YAML, too, and escapes what names may have in them.
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _summary(loaded: LoadedRun) -> str:
    config, head = loaded.config, loaded.model.head
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    layers = "-".join(map(str, config.model.hidden_sizes))
    bound = "none is known" if head.rank_bound is None else f"{head.rank_bound:,}"
    made = environment()
    commit = "" if made.commit is None else f", commit {made.commit}"
    return f"""# {loaded.folder.resolve().name}

A language model that was trained with highrank: AWD-LSTM {layers}, head `{config.head.kind}` with
K = {head.num_components}, {count:,} parameters, seed {config.seed}.

| | |
|---|---|
| embeddings | {config.model.embedding_size}, {"tied" if config.model.tied else "not tied"} |
| bound on the rank of log-probabilities | {bound} |
| exported by | highrank {made.highrank}{commit}, {made.date} UTC |
| sha256 of the run's model.safetensors | `{loaded.sha256}` |"""


def _data(loaded: LoadedRun) -> str:
    header = loaded.corpus.header
    recipe = header.recipe
    rows = [
        f"| {name} | {split.num_tokens:,} | {split.unknown_fraction:.2%} | `{split.sha256[:16]}…` |"
        for name, split in header.splits.items()
    ]
    lower = ", lower-cased" if recipe.lower else ""
    return "\n".join(
        [
            "## Data",
            "",
            f"Corpus {header.name}: tokenizer `{recipe.tokenizer}`{lower}, {header.vocab_size:,} "
            f"tokens in the vocabulary. Splits: {recipe.split}.",
            "",
            "| split | tokens | of them `<unk>` | sha256 of the token ids |",
            "|---|--:|--:|---|",
            *rows,
        ]
    )


def _metrics(loaded: LoadedRun) -> str:
    rows = [
        f"| {metric.split} | {metric.method} | {metric.value:,.2f} | {metric.unit} |"
        for metric in metrics_of(loaded)
    ] or ["| – | none was measured | – | – |"]
    return "\n".join(
        [
            "## Metrics",
            "",
            "| split | method | value | unit |",
            "|---|---|--:|---|",
            *rows,
            "",
            "`<unk>` counts as a token. Perplexities of other tokenizers are not comparable.",
        ]
    )


def _usage(loaded: LoadedRun) -> str:
    tokens = [token for token in loaded.vocabulary.tokens if token.isalpha()][:2] or ["…"]
    space = "" if loaded.corpus.level == "char" else " "
    name = loaded.folder.resolve().name
    code = LOAD.format(name=name, prompt=space.join(tokens))
    notes = [NOTES] + [SIGMA] * loaded.corpus.header.recipe.lower
    return "\n\n".join(["## Load it", code, *notes])
