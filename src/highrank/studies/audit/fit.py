"""What the bound costs: heads fitted to the hidden states of a model that stays as it is.

A mixture of softmaxes has no bound. Two controls have that of one softmax: a softmax, and a mixture
of contexts with the mixture's parameters. All start from the model's own weights and learn from the
same batches; of each, the step that predicts best is taken. What the mixture then predicts better
than the best head with the bound, the model's own among them, on text that none has seen, is what
the bound costs.

N contexts, D hidden size, d size of what meets the output embedding, V vocabulary, K components.
"""

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from highrank.heads import Head, MixtureHead, MixtureOfContexts, MixtureOfSoftmaxes
from highrank.heads.bases.embedding import Activation
from highrank.heads.bases.mixture import PriorMixture
from highrank.heads.bases.start import zero_sum_noise
from highrank.progress import OnProgress
from highrank.studies.audit.samples import OneSoftmax, Sample, Samples, log_prob_of

NUM_COMPONENTS = 4
# Of the weights of contexts, in standard deviations, and factor of the weights of the prior: less
# of both takes longer to specialise.
NOISE, PRIOR_SCALE = 1.0, 3.0
LEARNING_RATE, BATCH_SIZE, WARMUP_STEPS = 1e-2, 256, 20
NUM_STEPS, NUM_LOOKS = 500, 5
# Seconds of CPU time for all heads together, unless their steps are done before, and the softmaxes
# of each head, by which they share them.
SECONDS, QUICK_SECONDS = 60.0, 20.0
NUM_SOFTMAXES = {"softmax": 1, "moc": 1, "mos": NUM_COMPONENTS}
# Of which a standard error is made: neighbouring tokens are alike.
NUM_GROUPS = 20

IDENTITY: Activation = "identity"


@dataclass(frozen=True, kw_only=True)
class FitFacts:
    """Heads after their fit, on held-out text."""

    part: str
    """Which softmax of the model the heads replace: " over …" and " beside …"; empty if all."""
    num_fitted: int
    """Contexts that were learned from."""
    num_held_out: int
    """Contexts that were scored, N."""
    num_components: int
    """K."""
    num_steps: int
    """Updates of the head that had the least time for them."""
    nats: float
    """Mean loss of the model's own head."""
    softmax_nats: float
    """Of one softmax, fitted."""
    moc_nats: float
    """Of the mixture of contexts."""
    mos_nats: float
    """Of the mixture of softmaxes."""
    gain: float
    """What the mixture of softmaxes wins over the best of the three others, in nats per token."""
    error: float
    """Standard error of that."""
    elapsed: float
    """Seconds."""

    @property
    def over_own(self) -> float:
        """What the mixture of softmaxes wins over the model's own head, in nats per token."""
        return self.nats - self.mos_nats


class Fitted(NamedTuple):
    losses: Tensor
    """(N,), of the held-out contexts, after the step that predicts the others best."""
    num_steps: int


def fit_heads(
    head: OneSoftmax,
    samples: Samples,
    *,
    part: str = "",
    num_steps: int = NUM_STEPS,
    seconds: float = SECONDS,
    on_progress: OnProgress | None = None,
) -> FitFacts:
    """Fit the three heads, and compare them with each other and with the model's own.

    Args:
        head: one softmax.
        part: which one of the model, for the result.
        num_steps: of each head.
        seconds: of this thread's CPU time, for all heads together, after which a fit ends earlier.
    """
    start, steps = time.monotonic(), []
    losses = {"own": token_losses(head, samples.held_out)}
    for index, name in enumerate(STARTS):
        if on_progress is not None:
            on_progress(index / len(STARTS), name)
        share = NUM_SOFTMAXES[name] / sum(NUM_SOFTMAXES.values())
        losses[name], done = fit_head(STARTS[name](head), samples, num_steps, share * seconds)
        steps.append(done)
    nats = {name: values.mean().item() for name, values in losses.items()}
    best = min(("own", "softmax", "moc"), key=lambda name: nats[name])
    difference = losses[best] - losses["mos"]  # (N,)
    return FitFacts(
        part=part,
        num_fitted=len(samples.learned.target),
        num_held_out=len(samples.held_out.target),
        num_components=NUM_COMPONENTS,
        num_steps=min(steps),
        nats=nats["own"],
        softmax_nats=nats["softmax"],
        moc_nats=nats["moc"],
        mos_nats=nats["mos"],
        gain=difference.mean().item(),
        error=grouped_error(difference),
        elapsed=time.monotonic() - start,
    )


def fit_head(head: PriorMixture, samples: Samples, num_steps: int, seconds: float) -> Fitted:
    """AdamW with a warm-up and a cosine; `seconds` may end it earlier."""
    learned, chosen, held_out = samples
    optimizer = torch.optim.AdamW(head.parameters(), weight_decay=0.0)
    best, weights, step = math.inf, head.state_dict(), 0
    for step, progress in _steps(num_steps, seconds):
        rate = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / WARMUP_STEPS)
        rows = _rows(len(learned.target), step)  # (BATCH_SIZE,)
        optimizer.zero_grad()
        batch_loss(head, learned.rows(rows)).backward()
        optimizer.step()
        if step % max(1, num_steps // NUM_LOOKS) == 0 or progress == 1:
            loss = token_losses(head, chosen).mean().item()
            if loss < best:
                best, weights = loss, copy.deepcopy(head.state_dict())
    head.load_state_dict(weights)
    return Fitted(token_losses(head, held_out), step)


def _steps(num_steps: int, seconds: float) -> Iterator[tuple[int, float]]:
    """The number of each step, from 1, and the fraction that is done after it; 1 ends it."""
    # What else the machine does has no influence.
    start, step, progress = time.thread_time(), 0, 0.0
    while progress < 1:
        step += 1
        progress = min(1.0, max(step / num_steps, (time.thread_time() - start) / seconds))
        yield step, progress


def _rows(num_contexts: int, step: int) -> Tensor:
    """The contexts of a step, the same for all heads."""
    random = torch.Generator().manual_seed(step)
    return torch.randint(num_contexts, (BATCH_SIZE,), generator=random)


def batch_loss(head: Head, sample: Sample) -> Tensor:
    """Mean loss, without what no head of the fit changes."""
    if sample.log_rest is None:
        return head(sample.hidden, sample.target)[1]
    log_q = head(sample.hidden, sample.target, reduction="none").output  # (N,)
    return -sample.log_prob(log_q).mean()


def token_losses(head: OneSoftmax, sample: Sample) -> Tensor:
    """(N,), float64."""
    return -sample.log_prob(log_prob_of(head, sample.hidden, sample.target)).double()


def grouped_error(values: Tensor) -> float:
    """Standard error of the mean, from the means of groups of neighbours."""
    means = torch.stack([part.mean() for part in values.chunk(NUM_GROUPS)])
    return (means.std() / math.sqrt(len(means))).item() if len(means) > 1 else math.inf


def softmax_from(head: OneSoftmax) -> PriorMixture:
    """A softmax that predicts what `head` predicts."""
    return _mixture_from(MixtureOfSoftmaxes, head, 1)


def moc_from(head: OneSoftmax) -> PriorMixture:
    """A mixture of contexts around the one of `head`."""
    return _mixture_from(MixtureOfContexts, head, NUM_COMPONENTS)


def mos_from(head: OneSoftmax) -> PriorMixture:
    """A mixture of softmaxes around the one of `head`."""
    return _mixture_from(MixtureOfSoftmaxes, head, NUM_COMPONENTS)


STARTS = {"softmax": softmax_from, "moc": moc_from, "mos": mos_from}


def _mixture_from(
    kind: type[MixtureOfSoftmaxes] | type[MixtureOfContexts],
    head: OneSoftmax,
    num_components: int,
) -> PriorMixture:
    latent, activation = None, IDENTITY
    if isinstance(head, MixtureHead) and head.latent is not None:
        latent, activation = head.latent, head.activation
    size, scale = head.weight.shape[1], getattr(head, "scale", 1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = kind(
            head.hidden_size,
            head.vocab_size,
            num_components,
            size,
            activation=activation,
            bias=head.bias is not None,
        )
        weight = torch.eye(size) * scale if latent is None else latent.weight.float()  # (d, D)
        spread = zero_sum_noise(weight, num_components)  # (K, d, D)
    assert isinstance(found.latent, nn.Linear)
    with torch.no_grad():
        found.weight.copy_(head.weight)
        if found.bias is not None and head.bias is not None:
            found.bias.copy_(head.bias * scale)
        found.latent.weight.copy_((weight + NOISE * spread).flatten(0, 1))
        found.latent.bias.zero_()
        if latent is not None:
            found.latent.bias.copy_(latent.bias.repeat(num_components))
        found.prior.weight.mul_(PRIOR_SCALE)
    found.logit_map = copy.deepcopy(head.logit_map)
    return found
