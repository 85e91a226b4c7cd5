"""Our runs and upgraded models in lm-evaluation-harness: extra `eval`.

    import lm_eval
    from highrank.integrations.lm_eval import harness_model

    model = harness_model("runs/small-1")
    lm_eval.simple_evaluate(model=model, tasks=["wikitext"])
    model.totals.token_perplexity

Three perplexities must not be confused. They share one sum of log-probabilities and divide it by
different counts: the harness' `word_perplexity` by what lies between spaces, its `byte_perplexity`
by bytes of UTF-8, and `highrank evaluate`, as `Totals`, by tokens, `<eos>` and `<unk>` included. A
text with `<unk>` is not spelled: its word and byte perplexities are too low, and the adapter logs
how many tokens that concerns.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from highrank.data.corpus import Recipe
from highrank.data.tokenizer import readable
from highrank.data.vocabulary import Vocabulary
from highrank.environment import install_hint
from highrank.generation import Sampling, stream
from highrank.integrations.huggingface import load_huggingface
from highrank.integrations.huggingface.run_tokenizer import RunTokenizer
from highrank.models.language_model import LanguageModel
from highrank.predictor import prompt_tokens
from highrank.run.configuration import is_run
from highrank.run.loading import load_run

if find_spec("lm_eval") is None:
    raise ImportError(f"lm_eval must be installed to evaluate with it: run {install_hint('eval')}")
from lm_eval.api.model import LM

logger = logging.getLogger(__name__)
# Tokens that are read at a time; the state goes on, so that no number depends on it.
WINDOW = 512
MAX_TOKENS = 256


@dataclass
class Totals:
    """Sums over texts that were scored."""

    nats: float = 0.0
    num_tokens: int = 0
    num_unknown: int = 0
    """Tokens that are `<unk>`."""

    @property
    def token_perplexity(self) -> float:
        """Perplexity per token of the run's vocabulary, as `highrank evaluate` prints it."""
        return math.exp(self.nats / self.num_tokens)

    def add(self, ids: list[int], vocabulary: Vocabulary, log_prob: float) -> None:
        self.nats -= log_prob
        self.num_tokens += len(ids)
        self.num_unknown += sum(index == vocabulary.unk for index in ids)

    def warn(self) -> None:
        if self.num_unknown:
            logger.warning(
                "%d of %d tokens are outside the vocabulary and count as <unk>: word and byte "
                "perplexities are too low, and choices that differ in them alone are equal.",
                self.num_unknown,
                self.num_tokens,
            )


def harness_model(name: str, device: str = "cpu", **options: Any) -> LM:
    """A model of the harness: a run, an exported one, or a Hugging Face model, upgraded or not.

    Args:
        name: a folder, or a name on the hub.
        options: of the harness' `HFLM`, as batch_size; a run takes none.
    """
    if is_run(Path(name)):
        run = load_run(Path(name), device)
        return RunLM(run.model, run.vocabulary, run.corpus.header.recipe, **options)
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    model = load_huggingface(name).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(name)
    if isinstance(tokenizer, RunTokenizer):
        return RunLM(model.language_model, tokenizer.vocabulary, tokenizer.recipe, **options)
    return HFLM(pretrained=model, tokenizer=tokenizer, **options)


class RunLM(LM):  # type: ignore[misc]
    """A run of `highrank train`. Texts start after the end of a line; a newline ends one."""

    def __init__(self, model: LanguageModel, vocabulary: Vocabulary, recipe: Recipe) -> None:
        super().__init__()
        if vocabulary.eos is None:
            raise ValueError("the vocabulary must have <eos>, got none")
        self.model, self.vocabulary, self.recipe = model, vocabulary, recipe
        self.totals = Totals()
        self._device = next(model.parameters()).device

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of each text from its first token on; nothing is cut, texts are independent."""
        found = []
        for request in tqdm(requests, "log-likelihoods of texts", disable=disable_tqdm):
            (text,) = request.args
            ids = self.vocabulary.encode(prompt_tokens(text, self.recipe)).tolist()
            total, _ = self._score([], ids)
            self.totals.add(ids, self.vocabulary, total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            found.append(total)
        self.totals.warn()
        return found

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """log p of each continuation, and whether each of its tokens is the likeliest."""
        found, scored = [], Totals()
        for request in tqdm(requests, "log-likelihoods", disable=disable_tqdm):
            pair = self._pair(*request.args)
            before, ids = (self.vocabulary.encode(tokens).tolist() for tokens in pair)
            found.append(self._score(before, ids))
            scored.add(ids, self.vocabulary, found[-1][0])
            self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
        scored.warn()
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Text after each context, up to the first stop string; greedy unless `do_sample`."""
        found = []
        for request in tqdm(requests, "generating", disable=disable_tqdm):
            context, options = request.args
            found.append(self._continue(context, dict(options)))
            self.cache_hook.add_partial("generate_until", request.args, found[-1])
        return found

    def _pair(self, context: str, continuation: str) -> tuple[list[str], list[str]]:
        """The tokens of both; a word that lies across their border is cut there."""
        before = prompt_tokens(context, self.recipe)
        whole = prompt_tokens(context + continuation, self.recipe)
        if whole[: len(before)] == before:
            return before, whole[len(before) :]
        return before, prompt_tokens(continuation, self.recipe)

    @torch.no_grad()
    def _score(self, before: list[int], ids: list[int]) -> tuple[float, bool]:
        """log p of `ids` after `before`, and whether each is the likeliest."""
        tokens = torch.tensor([self.vocabulary.eos, *before, *ids], device=self._device)  # (T + 1,)
        state, total, is_greedy = self.model.initial_state(1), 0.0, True
        first = len(before)
        for start in range(0, len(tokens) - 1, WINDOW):
            window = tokens[start : start + WINDOW + 1, None]  # (n + 1, 1)
            read = self.model.read(window[: min(WINDOW, len(tokens) - 1 - start)], state)
            state, target = read.state, window[1:]
            if start + len(target) <= first:
                continue
            skipped = max(0, first - start)
            log_p = self.model.head(read.hidden, target, reduction="none", **read.past).output
            total += float(log_p[skipped:].double().sum())
            best: Tensor = self.model.head.predict(read.hidden, **read.past)
            is_greedy = is_greedy and bool((best == target)[skipped:].all())
        return total, is_greedy

    def _continue(self, context: str, options: dict[str, Any]) -> str:
        prompt = prompt_tokens(context, self.recipe)
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        temperature = options.get("temperature", 1.0) if options.get("do_sample") else 0.0
        top_k, top_p = options.get("top_k") or None, options.get("top_p")
        sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=top_p)
        tokens, text, start = list(prompt), "", len(readable(prompt, self.recipe.level))
        num_tokens = int(options.get("max_gen_toks", MAX_TOKENS))
        for step in stream(self.model, self.vocabulary, prompt, sampling, num_tokens=num_tokens):
            tokens.append(step.tokens[0])
            text = readable(tokens, self.recipe.level)[start:]
            if any(stop in text for stop in stops):
                break
        ends = [text.index(stop) for stop in stops if stop in text]
        return text[: min(ends, default=len(text))]
