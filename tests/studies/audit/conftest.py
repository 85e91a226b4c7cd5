"""Results of audits with made-up numbers, and models that look their hidden states up."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from highrank.analysis.components import (
    Component,
    ComponentReport,
    PreferredToken,
    TopContext,
    mixture_state,
)
from highrank.analysis.divergence import Divergence
from highrank.analysis.rank import MEASURES
from highrank.analysis.undertrained import Closeness
from highrank.environment import Environment
from highrank.heads.linear import LinearHead
from highrank.predictor import Predictor
from highrank.studies.audit.answer import Answer, Limited, answer_of, joint_answer
from highrank.studies.audit.fit import FitFacts
from highrank.studies.audit.layer import HeadFacts
from highrank.studies.audit.measure import (
    AuditResult,
    ModelAudit,
)
from highrank.studies.audit.model import AuditedModel, Source, TextFacts
from highrank.studies.audit.rank import Baseline, Method, RankAt, RankFacts
from highrank.studies.audit.tokens import (
    UnargmaxableFacts,
    UnargmaxableToken,
    UndertrainedFacts,
    UndertrainedToken,
)

VERSIONS = {"highrank": "0.1.0", "commit": "0123456789ab", "torch": "2.13.0", "python": "3.11.7"}
WHERE = Environment(**VERSIONS, threads=2, cpu="a CPU", platform="Linux", date="2026-11-17 12:00")


class TablePredictor(Predictor):
    """Its hidden state is that of its last token in a table (V, D)."""

    architecture, num_parameters, is_tied = "table", 7, False

    def __init__(self, head, table, hidden_bound=None):
        self.head, self.table, self.hidden_bound = head, table, hidden_bound
        self.scale = head.scale if isinstance(head, LinearHead) else 1.0
        self.dtype = head.weight.dtype if hasattr(head, "weight") else torch.float32

    def initial_state(self, batch_size):
        return None

    def read(self, tokens, state):
        return self.table[tokens], {}, state


class TableModel:
    name, max_window = "it", 16

    def __init__(self, predictor):
        self.predictor = predictor

    def token(self, index):
        return f"w{index}"

    def load(self, device="cpu"):
        return self.predictor


def predictor(head, size=6, **options):
    """With tanh of random numbers as hidden states, and random weights of the head."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return TablePredictor(head.eval(), torch.randn(head.vocab_size, size).tanh(), **options)


def audited(predictor, tokens=None, num_tokens=200):
    if tokens is None:
        tokens = np.random.default_rng(0).integers(0, predictor.head.vocab_size, num_tokens)
    return AuditedModel(
        model=TableModel(predictor),
        source=Source.RUN,
        tokens=np.asarray(tokens),
        text="random",
        text_sha256="0",
    )


def measures(float32, float64):
    effective = {f"effective_rank_1e-{n}": rank for n, rank in ((2, 3), (3, 20), (4, 40), (5, 60))}
    numerical = {"numerical_rank_float32": float32, "numerical_rank_float64": float64}
    found = {**numerical, **effective, "stable_rank": 1.07, "entropy_rank": 12.3}
    assert list(found) == [measure.key for measure in MEASURES]
    return found


def rank_facts(values, bound=None, num_contexts=2000, num_tokens=1000, **options):
    rank = sum(value > 3e-6 * values[0] for value in values)
    facts = RankFacts(
        num_contexts=num_contexts,
        num_tokens=num_tokens,
        method=Method.STABLE,
        method_reason="the matrix has 1,000 columns, which fit into memory",
        measures=measures(rank, len(values)),
        unknown="",
        bound=bound,
        bound_reason="16 from the context, 1 from the normaliser" if bound else "5 are summed",
        ceiling=min(num_contexts, num_tokens, bound or num_tokens),
        ceiling_reason="bound" if bound else "tokens",
        largest=values[0],
        noise_floor=1e-13 * values[0],
        singular_values=tuple(values),
        growth=tuple(
            RankAt(num_contexts=num_contexts // part, measures=measures(rank // part, len(values)))
            for part in (2, 1)
        ),
    )
    return replace(facts, **options)


def component(k, mean_weight, token="the"):
    return Component(
        mean_weight=mean_weight,
        largest_fraction=mean_weight / 2,
        is_dead=mean_weight < 0.002,
        preferred=tuple(
            PreferredToken(token=f"{token}{n}", prob=0.1, responsibility=0.8) for n in range(10)
        ),
        top_contexts=(TopContext(text=f"as the days go by {k}", next_token=token, weight=0.9),) * 5,
    )


def mixture_report(*weights, specialisation=0.31, gate_information=0.4):
    total = len(weights)
    state, reason = mixture_state(specialisation, gate_information)
    return ComponentReport(
        num_contexts=2000,
        weight_entropy=0.8,
        use_entropy=0.8 + gate_information,
        specialisation=specialisation,
        gate_information=gate_information,
        state=state,
        state_reason=reason,
        pair_divergence=tuple(
            tuple(0.0 if i == j else 0.1 + 0.01 * abs(i - j) for j in range(total))
            for i in range(total)
        ),
        num_pair_contexts=500,
        num_dead=sum(weight < 0.002 for weight in weights),
        components=tuple(component(k, weight) for k, weight in enumerate(weights)),
    )


def unargmaxable_token(token, index, **options):
    facts = UnargmaxableToken(
        token=token, index=index, is_exact=True, lead=-1e-9, between=("a", "b", "c")
    )
    return replace(facts, **options)


def fit_facts(gain=0.03, error=0.005, own=0.05):
    """What a fit found, if the mixture wins so many nats over the control and the own head."""
    return FitFacts(
        part="",
        num_fitted=40_000,
        num_held_out=20_000,
        num_components=4,
        num_steps=500,
        nats=4.0 + own,
        softmax_nats=4.01 + gain,
        moc_nats=4.0 + gain,
        mos_nats=4.0,
        gain=gain,
        error=error,
        elapsed=31.0,
    )


def model_audit(name, kind, rank, mixture=None, tokens=(), **options):
    audit = ModelAudit(
        name=name,
        answer=Answer(verdict=Limited.UNKNOWN, headline="", reason=""),
        source=Source.RUN,
        architecture="AWD-LSTM",
        num_parameters=2_345_678,
        head=HeadFacts(
            kind=kind,
            vocab_size=1000,
            context_size=16,
            num_components=1 if mixture is None else len(mixture.components),
            has_bias=False,
            softcap=None,
            scale=1.0,
            dtype="float32",
            is_tied=True,
        ),
        text=TextFacts(
            name="penn-treebank/test",
            sha256="ab" * 32,
            tokens_sha256="cd" * 32,
            num_tokens=82_430,
            num_contexts=2000,
            nats=math.log(88.12),
            perplexity=88.12,
            shuffled_nats=math.log(450.5),
            shuffled_perplexity=450.5,
        ),
        rank=rank,
        baseline=Baseline(
            description="random weights",
            num_contexts=rank.num_contexts,
            measures=measures(17, 17),
            divergence=0.25,
            specialisation=None if mixture is None else 0.07,
        ),
        divergence=Divergence(nats=4.763, standard_error=0.0123, num_contexts=2000, num_groups=20),
        unargmaxable=UnargmaxableFacts(
            states="all of them, in a box from −1 to 1 (tanh)",
            num_argmaxable=1000 - len(tokens),
            num_tied=2,
            num_unargmaxable=len(tokens),
            num_undecided=0,
            num_untried=0,
            unargmaxable=tuple(tokens),
            elapsed=3.2,
        ),
        unargmaxable_note="",
        undertrained=UndertrainedFacts(
            measure=Closeness.DISTANCE,
            num_unused=3,
            limit=0.1,
            num_undertrained=1,
            undertrained=(UndertrainedToken(token="gold", index=9, score=0.0312, num_seen=2),),
        ),
        mixture=mixture,
        fit=None,
        fit_note="",
        elapsed=61.0,
    )
    audit = replace(audit, **options)
    answer = answer_of(audit.head, audit.text, audit.rank, audit.mixture, audit.fit, audit.fit_note)
    return replace(audit, answer=answer)


def audit_of(*models, **options):
    made = AuditResult(
        answer=joint_answer([m.name for m in models], [m.answer for m in models]),
        quick=False,
        num_contexts=2000,
        elapsed=130.0,
        environment=WHERE,
        models=models,
    )
    return replace(made, **options)


def softmax(**options):
    values = [900.0, *(60.0 * math.exp(-i / 9) for i in range(16))]
    options.setdefault("tokens", (unargmaxable_token("rare", 17),))
    return model_audit("runs/softmax-0", "softmax", rank_facts(values, bound=17), **options)


def mos(**options):
    """A mixture, whose baseline is of half of the contexts."""
    values = [800.0, *(50.0 * math.exp(-i / 80) for i in range(999))]
    options.setdefault("mixture", mixture_report(0.5, 0.3, 0.1999, 0.0001))
    options.setdefault("unargmaxable", None)
    options.setdefault("unargmaxable_note", "not decided, as the head is a mixture")
    found = model_audit("runs/mos-0", "mos", rank_facts(values), **options)
    return replace(found, baseline=replace(found.baseline, num_contexts=1000))


def with_holes():
    """A quick result in which everything is unknown that can be, after little time for tokens."""
    nothing = dict.fromkeys(measures(1, 1))
    rank = rank_facts([5.0, 1.0], num_contexts=2, measures=nothing, unknown="it is hidden")
    growth = tuple(replace(at, measures=nothing) for at in rank.growth)
    rank = replace(rank, growth=growth, singular_values=(5.0,))
    alone = Divergence(nats=1.0, standard_error=None, num_contexts=2, num_groups=1)
    model = softmax()
    baseline = replace(model.baseline, num_contexts=2, measures=nothing)
    tokens = replace(model.unargmaxable, num_argmaxable=296, num_undecided=3, num_untried=700)
    answer = answer_of(model.head, model.text, rank, None)
    changes = {"divergence": alone, "baseline": baseline, "unargmaxable": tokens}
    return audit_of(replace(model, answer=answer, rank=rank, **changes), quick=True)


@pytest.fixture(scope="session")
def make():
    """The functions above."""
    return SimpleNamespace(
        predictor=predictor,
        table=TablePredictor,
        audited=audited,
        softmax=softmax,
        mos=mos,
        result=audit_of,
        with_holes=with_holes,
        rank_facts=rank_facts,
        measures=measures,
        unargmaxable_token=unargmaxable_token,
        mixture_report=mixture_report,
        component=component,
        fit_facts=fit_facts,
    )


@pytest.fixture(scope="session")
def result():
    return audit_of(softmax(fit=fit_facts()), mos())
