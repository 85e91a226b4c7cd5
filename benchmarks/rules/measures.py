"""Candidates for a rule, all of the model with one softmax alone.

C contexts, V vocabulary, d size of what meets the output embedding, r rank.
"""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from highrank.analysis.rank import effective_rank, entropy_rank
from highrank.data.corpus import MemoryCorpus
from highrank.heads import MixtureHead
from highrank.models.language_model import LanguageModel
from highrank.predictor import LanguageModelPredictor
from highrank.studies.audit.fit import fit_heads
from highrank.studies.audit.model import AuditedModel, Source
from highrank.studies.audit.samples import read_material
from rules.models import GPT2

NUM_CONTEXTS = 2_000


def measure(model: LanguageModel, corpus: MemoryCorpus) -> dict[str, float]:
    """All candidates; ranks as fractions of the bound. The fit is that of the command."""
    model.eval()
    text: Any = SimpleNamespace(
        max_window=GPT2.length if isinstance(model.backbone, GPT2) else None
    )
    audited = AuditedModel(
        model=text,
        source=Source.RUN,
        tokens=corpus.split("test"),
        text="test",
        text_sha256="",
        train=corpus.split("train"),
    )
    material = read_material(LanguageModelPredictor(model), audited)
    fitted = asdict(fit_heads(material.head, material.samples, part=material.part))
    found = {f"fit {key}": value for key, value in fitted.items()}
    head = model.head
    if isinstance(head, MixtureHead):
        hidden, target, *_ = material.samples.held_out
        rows = torch.linspace(0, len(target) - 1, NUM_CONTEXTS).long()
        found |= spectra(head, hidden[rows]) | truncated(head, hidden[rows], target[rows])
    return found


@torch.no_grad()
def spectra(head: MixtureHead, hidden: Tensor) -> dict[str, float]:
    """Effective ranks of log p (C, V), of it without its mean, and weighted by probabilities."""
    log_p = head.double().log_prob(hidden.double())  # (C, V)
    head.float()
    frequency = log_p.exp().mean(0)  # (V,)
    centred = log_p - log_p.mean(0)
    weighted = (centred - (centred * frequency).sum(1, keepdim=True)) * frequency.sqrt()
    found, bound = {}, head.embedding_size + 2
    for name, matrix in {"raw": log_p, "centred": centred, "weighted": weighted}.items():
        values = torch.linalg.svdvals(matrix)
        for epsilon in (1e-2, 1e-3, 1e-4):
            found[f"{name} {epsilon:.0e}"] = effective_rank(values, epsilon) / bound
        found[f"{name} entropy"] = entropy_rank(values) / bound
    return found


@torch.no_grad()
def truncated(head: MixtureHead, hidden: Tensor, target: Tensor) -> dict[str, float]:
    """Nats that are lost with the best half, or three quarters, of the directions."""
    context = head.softmaxes(hidden).context[:, 0].double()  # (C, d)
    weight = head.weight.double()
    bias = 0.0 if head.bias is None else head.bias.double()

    def loss(context: Tensor) -> float:
        log_p = (context @ weight.T + bias).log_softmax(-1)
        return -log_p.gather(1, target[:, None]).mean().item()

    frequency = (context @ weight.T + bias).softmax(-1).mean(0)  # (V,)
    mean, centred = context.mean(0), context - context.mean(0)
    scaled = (weight - frequency @ weight) * frequency.sqrt()[:, None]  # (V, d)
    factor = torch.linalg.qr(scaled)[1]  # (d, d)
    left, values, right = torch.linalg.svd(centred @ factor.T, full_matrices=False)
    found = {}
    for fraction in (0.5, 0.75):
        r = max(1, int(len(right) * fraction))
        part = (left[:, :r] * values[:r]) @ right[:r] @ torch.linalg.pinv(factor.T)
        found[f"lost without {1 - fraction:.0%}"] = loss(part + mean) - loss(context)
    return found
