"""Write a run as a Hugging Face folder: weights, configuration, tokenizer and model card.

The card has what the model is, what it was trained on, what was measured, and how to load it.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from highrank.data.catalog import CATALOG
from highrank.data.corpus import read_counts
from highrank.data.subwords import text_of
from highrank.data.tokenizer import readable, unit_of
from highrank.environment import environment
from highrank.files import new_folder, read_json
from highrank.heads import head_arguments
from highrank.heads.bases.component import components_of
from highrank.heads.components.ngram import NGramComponent, table_size
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.run_model import RunForCausalLM, RunModelConfig
from highrank.integrations.huggingface.run_tokenizer import RunTokenizer, make_tokenizer
from highrank.models.weights import load_state, save_state
from highrank.run.configuration import config_to_json
from highrank.run.folder import METRICS_FILE
from highrank.run.loading import LoadedRun

CARD_FILE, TEMPLATE = "README.md", Path(__file__).with_name("card.md")
SIGMA = "Texts are lower-cased letter by letter: a Greek sigma that ends a word becomes σ, not ς."

NGRAMS = (
    "The folder `ngram` has the sequences of up to {order} tokens that were counted in the "
    "training split, with their probabilities. The text itself is not in it, but much of a text "
    "can be put together from such sequences."
)


class Export(NamedTuple):
    folder: Path
    files: tuple[str, ...]
    num_parameters: int


def export_run(loaded: LoadedRun, target: Path, replace: bool = False) -> Export:
    """Write the run's best model; the folder is there completely, or not at all.

    It is read again and compared with the run before it takes its place, which may be that of an
    earlier export to `replace`.
    """
    check_target(target, replace)
    tokenizer = make_tokenizer(loaded.vocabulary, loaded.corpus.header.recipe)
    model = make_model(loaded)
    with quiet_transformers("export a run"), new_folder(target, replace=True) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        card = model_card(loaded, target.resolve().name)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        _check(folder, loaded)
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return Export(target, files, sum(p.numel() for p in model.parameters()))


def make_model(loaded: LoadedRun) -> RunForCausalLM:
    """The run's best model as one of transformers, in evaluation mode."""
    config, vocabulary = loaded.config, loaded.vocabulary
    wants_counts = "token_counts" in head_arguments(config.head.kind)
    model = RunForCausalLM(
        RunModelConfig(
            run=config_to_json(dataclasses.replace(config, corpus=public_name(loaded))),
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
    for component in components_of(model):
        component.load_data(loaded.folder)
        component.forget_text()
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
    if not isinstance(content, dict) or content.get("model_type") != RunModelConfig.model_type:
        raise ValueError(f"what --force replaces must be an earlier export, got {target}")


@torch.no_grad()
def _check(folder: Path, loaded: LoadedRun) -> None:
    """Compare predictions and tokens of the written folder with those of the run."""
    model, read = RunForCausalLM.from_pretrained(folder), loaded.model
    ids = torch.arange(16)[:, None] % len(loaded.vocabulary)  # (T, 1)
    ids = ids.to(next(read.parameters()).device)
    found = read.read(ids, read.initial_state(1))
    want = read.head.log_prob(found.hidden, **found.past)[:, 0]  # (T, V)
    got = model.eval()(ids.T.cpu()).logits[0]
    assert (got - want.cpu()).abs().max() <= 1e-5, "the written model differs from the run"
    tokens = RunTokenizer.from_pretrained(folder).get_vocab()
    assert len(tokens) == len(loaded.vocabulary), (len(tokens), len(loaded.vocabulary))


def public_name(loaded: LoadedRun) -> str:
    """The corpus, without the name of a file of the user's."""
    name = loaded.corpus.header.name
    return name if name in CATALOG else "own text"


class Metric(NamedTuple):
    split: str
    method: str
    settings: str
    value: float
    unit: str


def model_card(loaded: LoadedRun, name: str) -> str:
    """The text of card.md, filled in: Markdown with a header in YAML.

    Args:
        name: the folder's.
    """
    config, head, corpus = loaded.config, loaded.model.head, loaded.corpus.header
    made, metrics = environment(), metrics_of(loaded)
    commit = "" if made.commit is None else f", commit {made.commit}"
    splits = [
        f"| {name} | {split.num_tokens:,} | {split.unknown_fraction:.2%} | `{split.sha256[:16]}…` |"
        for name, split in corpus.splits.items()
    ]
    rows = [
        f"| {m.split} | {m.method} | {m.settings} | {m.value:,.2f} | {m.unit} | "
        f"{corpus.splits[m.split].bits_per_byte(math.log2(m.value)):.4f} |"
        for m in metrics
    ]
    return TEMPLATE.read_text(encoding="utf-8").format(
        header=_header(loaded, metrics, name),
        name=name,
        network=loaded.model.backbone.title,
        layers="-".join(map(str, loaded.model.backbone.layer_sizes[1:])),
        kind=config.head.kind,
        num_components=head.num_components,
        num_parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        table="" if (table := table_size(loaded.model)) is None else f" + {table}",
        seed=config.seed,
        embeddings=f"{config.model.embedding_size}, {'tied' if config.model.tied else 'not tied'}",
        bound="none is known" if head.rank_bound is None else f"{head.rank_bound:,}",
        made_by=f"highrank {made.highrank}{commit}, {made.date}",
        sha256=loaded.sha256,
        corpus=public_name(loaded),
        tokenizer=corpus.recipe.tokenizer,
        lower=", lower-cased" if corpus.recipe.lower else "",
        vocab_size=corpus.vocab_size,
        split=corpus.recipe.split,
        splits="\n".join(splits),
        ngrams=_ngrams(loaded),
        metrics="\n".join(rows) or "| – | none was measured | – | – | – | – |",
        prompt=json.dumps(_prompt(loaded), ensure_ascii=False),
        sigma=f"\n\n{SIGMA}" if corpus.recipe.lower else "",
    )


def _ngrams(loaded: LoadedRun) -> str:
    """What the tables of an n-gram say about the training split."""
    orders = [c.order for c in components_of(loaded.model) if isinstance(c, NGramComponent)]
    return f"\n\n{NGRAMS.format(order=max(orders))}" if orders else ""


@torch.no_grad()
def _prompt(loaded: LoadedRun) -> str:
    """The likeliest words at the start of a line, by the model, each once."""
    model, vocabulary, level = loaded.model, loaded.vocabulary, loaded.corpus.level
    is_char, tokens = level == "char", vocabulary.tokens
    texts = [text_of([token]).strip() if level == "subword" else token for token in tokens]
    is_word = torch.tensor([text.isalnum() or (is_char and text == " ") for text in texts])
    ids, state, words = torch.tensor([[vocabulary.eos or 0]]), model.initial_state(1), []
    for _ in range(16 if is_char else 3):
        read = model.read(ids, state)
        log_p = model.head.log_prob(read.hidden, **read.past)[0, 0]  # (V,)
        ids, state = log_p.where(is_word, -torch.inf).argmax().view(1, 1), read.state
        words.append(vocabulary.tokens[int(ids)])
        is_word[ids] &= is_char
    return readable(words, level).strip()


def _header(loaded: LoadedRun, metrics: Sequence[Metric], model_name: str) -> str:
    results = []
    for metric in metrics:
        name, value = f"{metric.unit}, {metric.method}, {metric.settings}", round(metric.value, 2)
        data = {"name": public_name(loaded), "type": "text", "split": metric.split}
        found = {"type": "perplexity", "name": name, "value": value}
        results.append({"task": {"type": "text-generation"}, "dataset": data, "metrics": [found]})
    fields = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["highrank", loaded.config.model.kind, loaded.config.head.kind],
        "model-index": [{"name": model_name, "results": results}],
    }
    # JSON is YAML, too, and escapes what names may have in them.
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())


def metrics_of(loaded: LoadedRun) -> list[Metric]:
    """Numbers of this very model in the log and in the results of `highrank evaluate`.

    The newest of each split and method.
    """
    unit = f"perplexity per {unit_of(loaded.corpus.header.recipe.tokenizer)}"
    found = {(m.split, m.method): m for m in (*_logged(loaded, unit), *_evaluated(loaded))}
    return [found[key] for key in sorted(found, reverse=True)]


def _logged(loaded: LoadedRun, unit: str) -> list[Metric]:
    path, found = loaded.folder / METRICS_FILE, []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    with _explaining(path, "the log of a run"):
        events = [json.loads(line) for line in lines]
        epochs = [event["valid_loss"] for event in events if event.get("event") == "epoch"]
        end = events[-1] if events and events[-1].get("event") == "end" else {}
        if epochs:
            valid = math.exp(end.get("valid_loss", min(epochs)))
            settings = f"batch size {loaded.config.valid_batch_size}"
            found.append(Metric("valid", "static", settings, valid, unit))
        if "test_loss" in end:
            settings = f"batch size {end.get('test_batch_size', 1)}"
            found.append(Metric("test", "static", settings, math.exp(end["test_loss"]), unit))
    return found


def _evaluated(loaded: LoadedRun) -> Iterator[Metric]:
    for path in sorted((loaded.folder / "results").glob("*.json")):
        found = read_json(path)
        if not isinstance(found, dict) or found.get("model_sha256") != loaded.sha256:
            continue
        with _explaining(path, "a result of `highrank evaluate`"):
            split, method, unit = (str(found[key]) for key in ("split", "method", "unit"))
            settings = ", ".join(_settings(found["settings"]))
            metric = Metric(split, method, settings, float(found["value"]), unit)
        # Others are files of the user's.
        if split in loaded.corpus.header.splits:
            yield metric


def _settings(values: Mapping[str, Any]) -> Iterator[str]:
    """Each that is set, as "batch size 1"; those of a method are not told apart from the others."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        elif value is not None:
            yield f"{key.replace('_', ' ')} {value}"


@contextmanager
def _explaining(path: Path, wanted: str) -> Iterator[None]:
    """Name the file whose numbers are damaged."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{path} must be {wanted}, got {error}") from None
