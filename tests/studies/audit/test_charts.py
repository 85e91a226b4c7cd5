"""What the audit's curves are made of, against numpy."""

from types import SimpleNamespace

import numpy as np
import pytest

from highrank.studies.audit.charts import (
    MAX_POINTS,
    draw_components,
    draw_spectra,
    growth,
    relative_values,
    residual_values,
    spectra,
    style_of,
    thinned,
    use,
)


def model(values, num_contexts=50, num_tokens=40, noise_floor=0.0, **options):
    rank = SimpleNamespace(
        singular_values=tuple(values),
        largest=values[0],
        noise_floor=noise_floor,
        num_contexts=num_contexts,
        num_tokens=num_tokens,
        **options,
    )
    return SimpleNamespace(rank=rank)


def test_what_is_left_is_the_error_of_the_best_approximation():
    matrix = np.random.default_rng(0).normal(size=(6, 5))
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    want = [
        np.square(matrix - (left[:, :k] * values[:k]) @ right[:k]).sum() / np.square(matrix).sum()
        for k in range(1, 6)
    ]
    np.testing.assert_allclose(residual_values(model(values.tolist())), want, atol=1e-14)


def test_values_that_are_zero_by_construction_or_noise_are_drawn_as_zero():
    assert relative_values(model([4.0, 2.0])) == [1.0, 0.5, 0.0]
    assert relative_values(model([4.0, 2.0], num_tokens=2)) == [1.0, 0.5]
    assert relative_values(model([4.0, 2.0, 0.1], num_tokens=3, noise_floor=0.2)) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("length", [1, 2, 131, 10_000])
def test_a_curve_keeps_its_ends_and_few_points(length):
    indices = thinned(length)
    assert indices[0] == 0 and indices[-1] == length - 1
    assert len(indices) <= MAX_POINTS + 1
    assert indices == sorted(set(indices)) and max(indices[-2:]) - min(indices[-2:]) <= 1
    assert length > MAX_POINTS or indices == list(range(length))


def test_ranks_that_are_unknown_leave_no_line():
    at = [
        SimpleNamespace(num_contexts=n, measures={"rank": rank})
        for n, rank in ((10, None), (40, 30), (80, 60))
    ]
    models = [model([1.0], growth=at), model([1.0], growth=at[:1])]
    guide, line = growth(("a", "b"), models, "rank").series
    assert (guide.label, line.label) == ("one per context", "a")
    assert (line.x, line.y) == ((40, 80), (30, 60))
    assert growth(("b",), models[1:], "rank") is None


@pytest.mark.parametrize("values", [[4.0], [4.0, 2.0], [4.0, 3.0, 2.0, 1.0]])
def test_a_bound_beyond_the_values_is_named_at_the_edge(values):
    bounds = [3, 130, 2306]
    models = [model(values, num_contexts=len(values), bound=bound) for bound in bounds]
    figure = draw_spectra(spectra(("a", "b", "c"), models), models)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    frame = axes.get_window_extent()
    labels = {text.get_text(): text for text in axes.texts if "bound" in text.get_text()}
    is_beyond = len(values) < 3
    assert list(labels) == ["bound 3" + " →" * is_beyond, "bound 130 →", "bound 2,306 →"]
    for label in labels.values():
        extent = label.get_window_extent()
        assert frame.x0 <= extent.x0 and extent.x1 <= frame.x1
    upright = [line for line in axes.lines if list(line.get_xdata()) == [3, 3]]
    assert len(upright) == (not is_beyond)


@pytest.mark.parametrize("smallest, is_shown", [(0.5, False), (1e-8, True)])
def test_round_off_is_drawn_where_values_come_near_it(smallest, is_shown):
    models = [model([4.0, 4.0 * smallest], num_contexts=2, bound=None)]
    figure = draw_spectra(spectra(("a",), models), models)
    figure.draw_without_rendering()
    notes = [text for text in figure.axes[0].texts if text.get_text() == "round-off of float32"]
    assert len(notes) == is_shown and len(figure.axes[0].lines) == 1 + is_shown


def test_six_models_have_six_colours_and_markers_and_a_seventh_other_dashes():
    styles = [style_of(index) for index in range(6)]
    assert len({style.color for style in styles}) == len({style.marker for style in styles}) == 6
    seventh = style_of(6)
    assert seventh.color == styles[0].color and seventh.is_dashed != styles[0].is_dashed


def test_curves_of_several_models_have_markers_at_other_places(make):
    models = [make.mos(), make.mos()]
    lines = draw_spectra(spectra(("a", "b"), models), models).axes[0].lines[:2]
    assert [line.get_marker() for line in lines] == ["o", "D"]
    first, second = (line.get_markevery() for line in lines)
    assert first[0] != second[0] and first[1] == second[1]
    (alone,) = spectra(("a",), models[:1]).series
    assert alone.style.marker == ""


@pytest.mark.parametrize("total, ticks", [(20, 20), (21, 4), (104, 10)])
def test_many_components_have_few_numbers(make, total, ticks):
    axes = draw_components(use(make.mixture_report(*[1 / total] * total)), 0.5).axes[0]
    assert len(axes.get_xticks()) == ticks and axes.get_ylim()[1] > 0.5
