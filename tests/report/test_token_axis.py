import pytest

from highrank.report.figure import Axis, Series, series_style
from highrank.report.token_axis import against_tokens


@pytest.mark.parametrize(
    ("tokens", "label", "shown"),
    [
        ([70, 8_400], "tokens read", 8_400),
        ([70, 84_000], "thousand tokens read", 84),
        ([70, 2_500_000], "million tokens read", 2.5),
    ],
)
def test_an_axis_counts_in_what_the_longest_line_asks_for(tokens, label, shown):
    lines = [
        Series(label=name, x=x, y=[2.0] * len(x), style=series_style(place))
        for place, (name, x) in enumerate({"short": tokens[:1], "long": tokens}.items())
    ]
    chart = against_tokens(lines, Axis(label="nats"), what="tokens read")
    assert chart.x.label == label and not chart.x.is_log
    assert chart.series[1].x[-1] == pytest.approx(shown)
    assert chart.series[0].x[0] == chart.series[1].x[0]
