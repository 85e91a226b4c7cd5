"""The speed of a variant: measured on windows, of a corpus of any length."""

import numpy as np
import pytest

from highrank.studies.compare import speed
from highrank.studies.compare.source import SlicedCorpus, floor_of, open_source
from highrank.studies.compare.speed import measure_speed


def test_a_short_corpus_begins_again(variants, tiny, monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.05)
    (variant,) = variants()
    corpus = open_source(tiny)
    short = SlicedCorpus(
        corpus.vocabulary, {name: corpus.split(name)[:200] for name in ("train", "valid", "test")}
    )
    found = measure_speed(variant, short, [1] * 20, test_batch_size=2, has_cache=False)
    assert 0 < found.cpu < 1 and found.wall >= 0.5 * found.cpu
    cached = measure_speed(variant, short, [1] * 20, test_batch_size=2, has_cache=True)
    assert cached.test > found.test > 0
    want = 3 * found.valid + 2 * (found.test + found.valid) + found.analysis
    assert found.fixed(num_regimes=2, num_points=3) == pytest.approx(want)


def test_a_source_is_a_language_or_the_beginning_of_a_corpus(tiny, tmp_path):
    from highrank.data.prepare import prepare_text

    assert floor_of(open_source(tiny)) > 0
    lines = "\n".join(" ".join(f"w{n % 7}" for n in range(i, i + 9)) for i in range(200))
    (tmp_path / "text.txt").write_text(lines)
    path = str(prepare_text(tmp_path / "text.txt", cache=tmp_path / "cache").corpus.path)
    whole, part = open_source(path), open_source(path, 400)
    assert len(part.split("train")) == 400 and len(part.split("test")) <= 50
    np.testing.assert_array_equal(part.split("train"), whole.split("train")[:400])
    assert part.vocabulary == whole.vocabulary and floor_of(part) is None
    assert open_source(path, 10**9) is not part
