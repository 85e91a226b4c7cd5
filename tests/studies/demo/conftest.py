"""A demo result with made-up numbers of a plausible size."""

import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from highrank.studies.demo.measure import DemoResult, Fit, LanguageResult

SIZES = (8, 16, 32, 48, 63)
VOCAB_SIZE, NUM_CONTEXTS, NUM_COMPONENTS = 200, 400, 8
EXCESS = {
    "factorised": {
        "softmax": (0.73, 0.398, 0.137, 0.0412, 3.1e-7),
        "moc": (0.73, 0.398, 0.138, 0.0414, 4.5e-7),
        "mos": (0.152, 0.0391, 0.0104, 0.0052, 8.2e-4),
        "matched": (0.0513, 2.0e-7, 1.1e-7, 0.0, 0.0),
    },
    "senses": {
        "softmax": (0.612, 0.301, 0.118, 0.0603, 0.0371),
        "moc": (0.611, 0.303, 0.119, 0.0606, 0.0372),
        "mos": (0.0731, 0.0064, 0.0011, 4.1e-4, 2.2e-4),
        "matched": (0.0574, 0.0163, 0.0031, 6.1e-4, 2.6e-4),
    },
}


def make_fit(head: str, index: int, excess: float) -> Fit:
    size = SIZES[index]
    num_components = 1 if head in ("softmax", "matched") else NUM_COMPONENTS
    num_parameters = (VOCAB_SIZE + NUM_CONTEXTS * num_components) * size + VOCAB_SIZE
    if head == "matched":
        num_parameters = (VOCAB_SIZE + NUM_CONTEXTS * NUM_COMPONENTS) * size + VOCAB_SIZE
        size = num_parameters // (VOCAB_SIZE + NUM_CONTEXTS)
    bound = None if head == "mos" else size + 2
    rank = min(VOCAB_SIZE, bound or VOCAB_SIZE)
    blur = math.exp(-6 * excess)
    return Fit(
        head="softmax" if head == "matched" else head,
        context_size=size,
        num_components=num_components,
        num_parameters=num_parameters,
        matches=SIZES[index] if head == "matched" else None,
        excess=excess,
        rank=rank,
        rank_bound=bound,
        singular_values=spectrum(rank, tail=80.0 * blur + 10),
        example=tuple(p * blur + 0.01 * (1 - blur) for p in example()),
    )


def spectrum(rank: int, tail: float) -> tuple[float, ...]:
    inside = [900.0, *(60.0 * math.exp(-i / tail) for i in range(1, rank))]
    return (*inside, *(1e-13 * (1 - i / VOCAB_SIZE) for i in range(rank, VOCAB_SIZE)))


def example() -> tuple[float, ...]:
    return tuple(0.3 * 0.72**i for i in range(10))


def make_language(name: str, excess: Mapping[str, Sequence[float]]) -> LanguageResult:
    rank = 64 if name == "factorised" else VOCAB_SIZE
    return LanguageResult(
        name=name,
        vocab_size=VOCAB_SIZE,
        num_contexts=NUM_CONTEXTS,
        rank=rank,
        entropy=3.214,
        singular_values=spectrum(rank, tail=90.0),
        example_context=123,
        example_tokens=(17, 4, 181, 99, 65, 102, 8, 3, 144, 150),
        example=example(),
        fits=tuple(
            make_fit(head, index, excess[head][index])
            for index in range(len(SIZES))
            for head in ("softmax", "moc", "mos", "matched")
        ),
    )


def make_result(excess: Mapping[str, Mapping[str, Sequence[float]]]) -> DemoResult:
    languages = tuple(make_language(name, values) for name, values in excess.items())
    return DemoResult(seed=3, quick=False, elapsed=81.4, languages=languages)


@pytest.fixture(scope="session")
def result() -> DemoResult:
    return make_result(EXCESS)


@pytest.fixture(scope="session")
def result_with() -> Callable[..., DemoResult]:
    """`result_with("senses", mos=0.0)` is `result` with that excess for MoS at every d."""

    def make(language: str, **values: float) -> DemoResult:
        changed = {head: (value,) * len(SIZES) for head, value in values.items()}
        return make_result({**EXCESS, language: {**EXCESS[language], **changed}})

    return make
