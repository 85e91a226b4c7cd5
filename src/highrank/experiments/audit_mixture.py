"""Health of an audited mixture, with words and contexts written out."""

from collections.abc import Callable

from torch import Tensor

from highrank.analysis.components import Component, component_report
from highrank.experiments.audit_result import (
    ComponentFacts,
    MixtureFacts,
    PreferredWord,
    Takeover,
)
from highrank.heads import Head


def audit_mixture(
    head: Head,
    hidden: Tensor,
    word: Callable[[int], str],
    context: Callable[[int], tuple[str, str]],
    on_progress: Callable[[float, str], None],
) -> MixtureFacts:
    """What the components do in the contexts with hidden states (T, D).

    Args:
        word: how a word of the vocabulary is written.
        context: the last words of a context and the word that follows, by its row of `hidden`.
    """
    report = component_report(head, hidden, on_progress=on_progress)
    return MixtureFacts(
        num_contexts=report.num_contexts,
        weight_entropy=report.weight_entropy,
        use_entropy=report.use_entropy,
        specialisation=report.specialisation,
        pair_divergence=report.pair_divergence,
        num_dead=len(report.dead),
        components=tuple(_component(found, word, context) for found in report.components),
    )


def _component(
    found: Component, word: Callable[[int], str], context: Callable[[int], tuple[str, str]]
) -> ComponentFacts:
    takeovers = []
    for takeover in found.takeovers:
        text, next_word = context(takeover.context)
        takeovers.append(Takeover(text=text, next_word=next_word, weight=takeover.weight))
    return ComponentFacts(
        mean_weight=found.mean_weight,
        largest_share=found.largest_share,
        is_dead=found.is_dead,
        preferred=tuple(
            PreferredWord(word=word(p.word), prob=p.prob, share=p.share) for p in found.preferred
        ),
        takeovers=tuple(takeovers),
    )
