"""One look for every page, picture and table: the colours, and how each head is named and drawn."""

from dataclasses import dataclass

# In light and in dark. Text has a contrast of at least 4.5 with what is behind it, a line of at
# least 3. The series differ also for the colour-blind; markers and dashes tell them apart, too.
COLORS = {
    "page": ("#f5f6f8", "#0f1318"),
    "surface": ("#ffffff", "#181e26"),
    "ink": ("#1b2430", "#e7ebf0"),
    "muted": ("#596577", "#a0abb9"),
    "grid": ("#e2e6eb", "#2d3641"),
    "accent": ("#e8f1fa", "#1b2e42"),
    "truth": ("#87919e", "#778291"),
    "bar": ("#d3d9e0", "#3a4552"),
    "series-1": ("#cf4f0c", "#ff9a5c"),
    "series-2": ("#0a8464", "#45c9a0"),
    "series-3": ("#1766ab", "#6fb6ff"),
    "series-4": ("#8a4fa3", "#cfa0e6"),
    "series-5": ("#8f6b00", "#dcb94a"),
    "series-6": ("#c2266e", "#ff8fbd"),
}
LIGHT = {name: light for name, (light, _) in COLORS.items()}
DARK = {name: dark for name, (_, dark) in COLORS.items()}


@dataclass(frozen=True)
class Style:
    """The look of a series."""

    color: str
    """Key of `LIGHT` and `DARK`."""
    marker: str = ""
    """As matplotlib names it."""
    width: float = 2.0
    marker_size: float = 6.0
    """Both in points."""
    is_dashed: bool = False


TRUTH = Style("truth", width=5.0)
# A softmax and a MoC often coincide: small dashes and squares on a broad line leave both visible.
HEAD_STYLES = {
    "softmax": Style("series-1", marker="o", width=4.0, marker_size=9.0),
    "moc": Style("series-2", marker="s", width=1.6, marker_size=5.0, is_dashed=True),
    "mos": Style("series-3", marker="D", marker_size=6.5),
}
HEAD_NAMES = {"softmax": "Softmax", "moc": "MoC", "mos": "MoS"}
