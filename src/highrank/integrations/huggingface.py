"""Causal language models of Hugging Face: hidden states, and what makes logits of them.

Names are looked up on the hub once, so that a hub that does not answer costs one time-out.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.environment import install_hint
from highrank.integrations.float32 import compute_in_float32

# A name, or that of a user or an organisation, a slash, and a name.
NAME = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)
MAX_LENGTH = 96
FILES = "config.json, a tokenizer and *.safetensors, as save_pretrained of transformers writes them"


class HubError(ValueError):
    """The hub has no such model, or cannot be reached."""


def is_hub_name(name: str) -> bool:
    """Whether a model on the hub can have this name, as gpt2 or google/gemma-2-2b."""
    return len(name) <= MAX_LENGTH and NAME.fullmatch(name) is not None


def hub_answers(name: str) -> bool:
    """Whether the model is on the hub: one request, where transformers would send six.

    False if there is no answer but the model was downloaded before. A `HubError` if there is no
    answer and no download, or if the hub has no such model.
    """
    import huggingface_hub
    import huggingface_hub.errors

    hub: Any = huggingface_hub
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"))
    except (hub.errors.GatedRepoError, hub.errors.EntryNotFoundError):
        # The model is there. Why it cannot be loaded is reported when it is loaded.
        return True
    except hub.errors.RepositoryNotFoundError:
        raise HubError("the Hugging Face hub has no model of this name") from None
    # Errors of the connection are no OSErrors in newer versions.
    except (OSError, hub.errors.HTTPError) as error:
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return False
        raise HubError(f"the Hugging Face hub could not be reached ({first_line(error)})") from None
    return True


def first_line(error: Exception) -> str:
    """Of the error's message, which may be a page; with the second if that is what follows."""
    first, *rest = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        repr(error)
    ]
    return f"{first} {rest[0]}" if first.endswith(":") and rest else first


# Names that configurations give to a softcap, a factor and a divisor of the logits.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
# Tokens with which a model is checked, and a logit far in the bent part of any softcap.
NUM_CHECKED, CHECKED_LOGIT = 8, 100.0
CHUNK_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """logits = scale · (W hidden + b), then softcap · tanh(logits / softcap) if there is one."""

    weight: Tensor
    """(V, D), in the precision in which it is stored."""
    bias: Tensor | None
    """(V,)."""
    scale: float
    softcap: float | None
    is_tied: bool
    """Whether the weight is that of the input embedding."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., V), in the precision of `hidden` (..., D)."""
        # A copy of all weights in another precision can be larger than the model.
        starts = range(0, len(self.weight), CHUNK_TOKENS)
        return torch.cat([self._logits(hidden, slice(i, i + CHUNK_TOKENS)) for i in starts], -1)

    def _logits(self, hidden: Tensor, tokens: slice) -> Tensor:
        weight = self.weight[tokens].to(hidden.dtype)
        bias = None if self.bias is None else self.bias[tokens].to(hidden.dtype)
        logits = F.linear(hidden, weight, bias) * self.scale
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()


class HuggingFaceModel:
    """A model by its folder or its name on the hub: configuration and tokenizer, weights later."""

    def __init__(self, name: str) -> None:
        self.name = name
        with _transformers(name) as transformers:
            # A folder has all files; a hub that does not answer is not asked for each of them.
            is_local = Path(name).is_dir() or not hub_answers(name)
            self._options = {"trust_remote_code": False, "local_files_only": is_local}
            with _explained(name, "configuration"):
                self.config = transformers.AutoConfig.from_pretrained(name, **self._options)
            if self.config.is_encoder_decoder:
                raise ValueError(
                    f"a model must predict the next token of one text, got {name}, whose type "
                    f"{self.config.model_type} is an encoder and a decoder: it needs a source text"
                )
            if _has_no_tokenizer(Path(name)):
                raise ValueError(f"{name} has no tokenizer: a model's folder has {FILES}")
            with _explained(name, "tokenizer"):
                self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, **self._options)
        # transformers makes one up for some types of models.
        if set(self.tokenizer.get_vocab()) <= set(self.tokenizer.all_special_tokens):
            raise ValueError(f"{name} has no tokenizer: a model's folder has {FILES}")
        # Models whose texts begin with a special token get it in every window.
        start = self.tokenizer("")["input_ids"][:1]
        self.prefix = [int(i) for i in start if i == self.tokenizer.bos_token_id]

    @property
    def max_window(self) -> int | None:
        """Longest input in tokens; None if the configuration has no limit."""
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit) - len(self.prefix)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(i) for i in ids]

    def token(self, index: int) -> str:
        """A token as the tokenizer writes it; `<index>` for embeddings that it does not know."""
        found = self.tokenizer.convert_ids_to_tokens(index) if index < len(self.tokenizer) else None
        return f"<{index}>" if found is None else str(found)

    def load(self, device: str = "cpu") -> "LoadedModel":
        """The weights, which compute in float32 on a CPU; checks the output layer."""
        with _transformers(self.name) as transformers, _explained(self.name, "weights"):
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                self.name,
                use_safetensors=True,
                torch_dtype="auto",
                output_loading_info=True,
                **self._options,
            )
            if missing := sorted(found["missing_keys"]):
                # transformers makes them up at random.
                raise ValueError(f"no file has {missing[0]}")
        for tensor_name, tensor in model.named_parameters():
            if tensor.isnan().any():
                raise ValueError(f"The weights of {self.name} have NaN in {tensor_name}.")
        return LoadedModel(model.to(device).eval(), self.name, self.prefix)


class LoadedModel:
    """The hidden states of a causal language model, and its output layer."""

    def __init__(self, model: Any, name: str, prefix: list[int]) -> None:
        self.model, self.name, self.prefix = model, name, prefix
        self.architecture = type(model).__name__
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        # The output embedding stays as it is stored: it is converted piece by piece where needed.
        self.layer = _output_layer(model, name)
        self.precision = self.layer.weight.dtype
        if model.device.type == "cpu":
            compute_in_float32(model)
            self.precision = torch.float32
        for largest in (None, CHECKED_LOGIT):
            self._check_layer(largest)
        self._check_causal()

    @torch.no_grad()
    def states(self, tokens: Tensor) -> Tensor:
        """The hidden states (B, L, D), float32, after each of the tokens (B, L)."""
        kept: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            kept.append(hidden)
            # No position reaches the output layer: all logits would need the most memory by far.
            return hidden[:, :0]

        self._run(tokens, keep)
        return kept[0][:, len(self.prefix) :].float()

    def _run(self, tokens: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The model's logits, with `change` applied to its hidden states."""
        calls = []

        def before(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            calls.append(inputs[0].shape)
            return (change(inputs[0]), *inputs[1:])

        prefix = torch.tensor(self.prefix, dtype=tokens.dtype).expand(len(tokens), -1)
        tokens = torch.cat([prefix, tokens.cpu()], 1).to(self.model.device)  # (B, prefix + L)
        hook = self.model.get_output_embeddings().register_forward_pre_hook(before)
        try:
            # Without a mask no token counts as padding; transformers warns about that.
            with _transformers(self.name):
                logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        finally:
            hook.remove()
        want = (*tokens.shape, self.layer.weight.shape[1])
        if calls != [want]:
            raise ValueError(
                f"the output layer of {self.name} must be called once with states {want}, got "
                f"{[tuple(shape) for shape in calls]} from {self.architecture}"
            )
        return logits

    @torch.no_grad()
    def _check_layer(self, largest: float | None) -> None:
        """Refuse a head that does more than `OutputLayer`.

        Args:
            largest: hidden states are scaled to this largest logit; None leaves them.
        """
        used: list[Tensor] = []

        def scale(hidden: Tensor) -> Tensor:
            if largest is not None:
                plain = replace(self.layer, scale=1.0, softcap=None).logits(hidden.float())
                hidden = hidden * (largest / plain.abs().max().clamp_min(1e-9).item())
            used.append(hidden)
            return hidden

        theirs = self._run(self._probe(), scale).float().log_softmax(-1)
        logits = self.layer.logits(used[0].float())
        worst = (theirs - logits.log_softmax(-1)).abs().max().item()
        # Written so that nan is refused, too.
        if not worst <= _tolerance(largest or logits.abs().max().item(), used[0].dtype):
            raise ValueError(
                f"the output layer of {self.name} must be a linear map with at most a scale "
                f"and a softcap that its configuration names, got {self.architecture} with "
                f"log-probabilities that differ from those by {worst:.3g}"
            )

    def _check_causal(self) -> None:
        """Refuse a model whose hidden states depend on later tokens."""
        tokens = self._probe()
        other = tokens.clone()
        other[0, -1] = (tokens[0, -1] + 1) % len(self.layer.weight)
        states = self.states(tokens)[:, :-1]  # (1, n, D)
        worst = (states - self.states(other)[:, :-1]).abs().max().item()
        if not worst <= _tolerance(states.abs().max().item(), self.precision):
            raise ValueError(
                f"{self.name} must be a causal language model, got {self.architecture}, whose "
                "hidden states depend on later tokens"
            )

    def _probe(self) -> Tensor:
        return torch.arange(NUM_CHECKED)[None] % len(self.layer.weight)  # (1, NUM_CHECKED)


def _tolerance(largest: float, dtype: torch.dtype) -> float:
    """Of values up to `largest`, which are rounded in this precision."""
    return max(1.0, largest) * (1e-4 + 4 * torch.finfo(dtype).eps)


def _output_layer(model: Any, name: str) -> OutputLayer:
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        found = "none" if layer is None else type(layer).__name__
        raise ValueError(f"the output layer of {name} must be nn.Linear, got {found}")
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings()
    return OutputLayer(
        weight=layer.weight.detach(),
        bias=None if layer.bias is None else layer.bias.detach(),
        scale=(_first_of(config, FACTORS) or 1.0) / (_first_of(config, DIVISORS) or 1.0),
        softcap=_first_of(config, SOFTCAPS),
        is_tied=embedding is not None and embedding.weight is layer.weight,
    )


def _first_of(config: Any, names: tuple[str, ...]) -> float | None:
    values = (getattr(config, name, None) for name in names)
    return next((float(v) for v in values if isinstance(v, int | float)), None)


@contextmanager
def _transformers(name: str) -> Iterator[Any]:
    """Yield the package, without its progress bars and warnings: the command has its own bar."""
    if find_spec("transformers") is None:
        there = "" if Path(name).exists() else " (it is no folder here)"
        raise ValueError(
            f"transformers must be installed to load {name}{there} as a Hugging Face model: "
            f"run {install_hint('hf')}"
        )
    import transformers

    logging = transformers.utils.logging
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


@contextmanager
def _explained(name: str, part: str) -> Iterator[None]:
    """Whatever transformers cannot load becomes an error of one line, with the damaged file."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Errors of safetensors, of configurations and of sizes have no common class.
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        found = _damaged_file(Path(name)) or reason
        raise ValueError(
            f"The {part} of {name} cannot be loaded: {found.rstrip('.')}. A "
            f"model's folder has {FILES}"
        ) from error


def _has_no_tokenizer(folder: Path) -> bool:
    """Whether it is a folder in which no file can be one."""
    patterns = ("tokenizer*", "vocab*", "merges*", "*.model", "*.tiktoken")
    return folder.is_dir() and not any(next(folder.glob(name), None) for name in patterns)


def _damaged_file(folder: Path) -> str:
    """The first file that is no JSON or no safetensors, and why; empty if all are sound."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            return f"{path} is no JSON ({first_line(error)})"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                pass
        except SafetensorError as error:
            return f"{path} is cut off or damaged ({first_line(error)})"
    return ""
