"""The model card: what a model is, what it was trained on, what was measured, how to load it."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from highrank.data.tokenizer import unit_of
from highrank.environment import environment
from highrank.files import read_json
from highrank.run.folder import METRICS_FILE
from highrank.run.loading import LoadedRun

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
    backbone = loaded.model.backbone
    layers = "-".join(map(str, backbone.layer_sizes[1:]))
    bound = "none is known" if head.rank_bound is None else f"{head.rank_bound:,}"
    made = environment()
    commit = "" if made.commit is None else f", commit {made.commit}"
    return f"""# {loaded.folder.resolve().name}

A language model that was trained with highrank: {backbone.title} {layers}, head
`{config.head.kind}` with K = {head.num_components}, {count:,} parameters, seed {config.seed}.

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
