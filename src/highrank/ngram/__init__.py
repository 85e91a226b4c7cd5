"""Interpolated modified Kneser–Ney n-gram models over token ids.

Kneser and Ney (1995), with the three discounts of Chen and Goodman (1998), section 3:

    p_k(w | h) = max(c(hw) - D(c(hw)), 0) / C(h) + γ(h) · p_{k-1}(w | h without its first token)
    C(h) = Σ_w c(hw),  γ(h) = 1 - Σ_w max(c(hw) - D(c(hw)), 0) / C(h),  p_0(w) = 1 / V

c of the highest order n is how often the text has hw. c of lower orders is how many different
tokens precede hw, where the beginning of the text counts as one. γ of a context that was never
seen is 1. A text is one stream of tokens, `<eos>` among them; contexts at its beginning are
shorter.

`build` makes the table of a text, and what leave-one-out finds at each of its positions. `save`
and `load` keep both in a folder.
"""

from highrank.ngram.kneser_ney import LeaveOneOut, NGram, build
from highrank.ngram.storage import TABLE_FILES, load, read_size, save
from highrank.ngram.table import Table, TableSize

__all__ = [
    "TABLE_FILES",
    "LeaveOneOut",
    "NGram",
    "Table",
    "TableSize",
    "build",
    "load",
    "read_size",
    "save",
]
