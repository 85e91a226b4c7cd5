"""Causal language models of Hugging Face: their hidden states, and what makes logits of them.

Safetensors only, and no code that comes with a model. transformers is imported when it is needed.
B windows, L tokens of a window, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.integrations.hub import hub_answers

# What configurations call a softcap, a factor and a divisor of the logits.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
# Tokens of the text with which the output layer is checked, and the largest logit they then have:
# far in the bent part of any softcap.
NUM_CHECKED, CHECKED_LOGIT = 8, 100.0
WORDS_AT_ONCE = 8192


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """logits = scale · (W hidden + b), then softcap · tanh(logits / softcap) if there is one."""

    weight: Tensor
    """(V, D), in the model's own precision."""
    bias: Tensor | None
    """(V,)."""
    scale: float
    softcap: float | None
    is_tied: bool
    """Whether the weight is that of the input embedding."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., V), in the precision of `hidden` (..., D)."""
        # A copy of all weights in another precision can be larger than the model.
        return torch.cat(
            [
                self._logits(hidden, slice(start, start + WORDS_AT_ONCE))
                for start in range(0, len(self.weight), WORDS_AT_ONCE)
            ],
            -1,
        )

    def _logits(self, hidden: Tensor, words: slice) -> Tensor:
        weight = self.weight[words].to(hidden.dtype)
        bias = None if self.bias is None else self.bias[words].to(hidden.dtype)
        logits = F.linear(hidden, weight, bias) * self.scale
        if self.softcap is None:
            return logits
        return self.softcap * torch.tanh(logits / self.softcap)


class HuggingFaceModel:
    """A model by its folder or its name on the hub: configuration and tokenizer, weights later."""

    def __init__(self, name: str) -> None:
        transformers = _transformers(name)
        self.name = name
        # A folder has all files; where the hub does not answer, it is not asked for each of them.
        is_local = Path(name).is_dir() or not hub_answers(name)
        self._options = {"trust_remote_code": False, "local_files_only": is_local}
        with _quiet(transformers), _explained(name):
            self.config = transformers.AutoConfig.from_pretrained(name, **self._options)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, **self._options)
        # Models that begin with a token of its own are given it in every window.
        start = self.tokenizer("")["input_ids"][:1]
        self.prefix = [int(i) for i in start if i == self.tokenizer.bos_token_id]

    @property
    def max_window(self) -> int | None:
        """Tokens that the model can read at once; None if its configuration knows no limit."""
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit) - len(self.prefix)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(i) for i in ids]

    def word(self, index: int) -> str:
        """A token as the tokenizer writes it; rows of the embedding that it does not know exist."""
        found = self.tokenizer.convert_ids_to_tokens(index) if index < len(self.tokenizer) else None
        return f"<{index}>" if found is None else str(found)

    def load(self, device: str = "cpu") -> "Reader":
        """The weights, in the precision in which they are stored, and a check of the head."""
        transformers = _transformers(self.name)
        with _quiet(transformers), _explained(self.name):
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                self.name,
                use_safetensors=True,
                torch_dtype="auto",
                output_loading_info=True,
                **self._options,
            )
            if missing := sorted(found["missing_keys"]):
                # transformers makes them up at random.
                raise ValueError(f"its file has no weights for {missing[0]}")
        return Reader(model.to(device).eval(), self.name, self.prefix)


class Reader:
    """A causal language model up to its output layer, and that layer."""

    def __init__(self, model: Any, name: str, prefix: list[int]) -> None:
        self.model, self.name, self.prefix = model, name, prefix
        self.architecture = type(model).__name__
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.layer = _output_layer(model, name)
        self._check()
        self._check_causal()

    @torch.no_grad()
    def states(self, tokens: Tensor) -> Tensor:
        """What the output layer sees (B, L, D), float32, after each of the tokens (B, L)."""
        kept: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            kept.append(hidden)
            # No position goes on: logits of all words would need far more memory than the rest.
            return hidden[:, :0]

        self._run(tokens, keep)
        return kept[0][:, len(self.prefix) :].float()

    def _run(self, tokens: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The model's logits, with its hidden states changed before they meet the output layer."""
        calls = []

        def before(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            calls.append(inputs[0].shape)
            return (change(inputs[0]), *inputs[1:])

        prefix = torch.tensor(self.prefix, dtype=tokens.dtype).expand(len(tokens), -1)
        tokens = torch.cat([prefix, tokens.cpu()], 1).to(self.model.device)  # (B, prefix + L)
        hook = self.model.get_output_embeddings().register_forward_pre_hook(before)
        try:
            # Without a mask no token counts as padding; that it is missing is remarked on.
            with _quiet(_transformers(self.name)):
                logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        finally:
            hook.remove()
        want = (*tokens.shape, self.layer.weight.shape[1])
        if calls != [want]:
            raise ValueError(
                f"the output layer of {self.name} must be called once with states {want}, got "
                f"{[tuple(shape) for shape in calls]}: its architecture {self.architecture} "
                "cannot be audited"
            )
        return logits

    def _check(self) -> None:
        """Refuse a head that does more than `OutputLayer` says, with small and large logits."""
        for largest in (None, CHECKED_LOGIT):
            worst, size, eps = self._error(largest)
            allowed = max(1.0, size) * (1e-4 + 4 * eps)
            # Written so that nan is refused, too.
            if not worst <= allowed:
                raise ValueError(
                    f"the output layer of {self.name} must be a linear map with at most a scale "
                    f"and a softcap that its configuration names, got {self.architecture} with "
                    f"log-probabilities that differ from those by {worst:.3g}"
                )

    def _check_causal(self) -> None:
        """Refuse a model whose states have read the tokens that follow."""
        tokens = torch.arange(NUM_CHECKED)[None] % len(self.layer.weight)
        other = tokens.clone()
        other[0, -1] = (tokens[0, -1] + 1) % len(self.layer.weight)
        states = self.states(tokens)[:, :-1]  # (1, n, D)
        worst = (states - self.states(other)[:, :-1]).abs().max().item()
        eps = torch.finfo(self.layer.weight.dtype).eps
        if not worst <= max(1.0, states.abs().max().item()) * (1e-4 + 4 * eps):
            raise ValueError(
                f"{self.name} must be a causal language model, got {self.architecture}, whose "
                "states depend on the tokens that follow"
            )

    @torch.no_grad()
    def _error(self, largest: float | None) -> tuple[float, float, float]:
        """How far the model's log-probabilities are from ours; its largest logit and its epsilon.

        Args:
            largest: what the states are enlarged to, in logits; None leaves them as they are.
        """
        used: list[Tensor] = []

        def enlarge(hidden: Tensor) -> Tensor:
            if largest is not None:
                plain = replace(self.layer, scale=1.0, softcap=None).logits(hidden.float())
                hidden = hidden * (largest / plain.abs().max().clamp_min(1e-9).item())
            used.append(hidden)
            return hidden

        tokens = torch.arange(NUM_CHECKED)[None] % len(self.layer.weight)
        theirs = self._run(tokens, enlarge).float().log_softmax(-1)
        logits = self.layer.logits(used[0].float())
        worst = (theirs - logits.log_softmax(-1)).abs().max().item()
        # Logits are rounded in the model's precision, so the error grows with them.
        return worst, largest or logits.abs().max().item(), torch.finfo(used[0].dtype).eps


def _output_layer(model: Any, name: str) -> OutputLayer:
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        found = "none" if layer is None else type(layer).__name__
        raise ValueError(f"the output layer of {name} must be nn.Linear, got {found}")
    config = model.config.get_text_config()
    factor = _first_of(config, FACTORS) or 1.0
    divisor = _first_of(config, DIVISORS) or 1.0
    embedding = model.get_input_embeddings()
    return OutputLayer(
        weight=layer.weight.detach(),
        bias=None if layer.bias is None else layer.bias.detach(),
        scale=factor / divisor,
        softcap=_first_of(config, SOFTCAPS),
        is_tied=embedding is not None and embedding.weight is layer.weight,
    )


def _first_of(config: Any, names: tuple[str, ...]) -> float | None:
    values = (getattr(config, name, None) for name in names)
    return next((float(v) for v in values if isinstance(v, int | float)), None)


def _transformers(name: str) -> Any:
    if find_spec("transformers") is None:
        there = "" if Path(name).exists() else " (it is no folder here)"
        raise ValueError(
            f"transformers must be installed to read {name}{there} as a Hugging Face model: "
            "run `pip install '.[hf]'` in the checkout of highrank"
        )
    import transformers

    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars and no remarks of transformers: they would run into the command's own bar."""
    logging = transformers.utils.logging
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever transformers cannot load becomes one line that says what was asked for."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Besides the usual ones: errors of safetensors, of configurations and of sizes, which have
        # no common class.
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise ValueError(
            f"a model must be a run of ours, a folder that transformers saved (with safetensors "
            f"and a tokenizer) or such a name on the Hugging Face hub, got {name}: {reason}"
        ) from error
