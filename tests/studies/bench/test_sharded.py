"""Two processes and one have the same loss, and what is sent is counted."""

from dataclasses import replace

import pytest

from highrank.studies.bench import loss
from highrank.studies.bench.baselines import TINY
from highrank.studies.bench.sharded import ONE, SHARDED, check_values, run_sharded_bench
from highrank.studies.bench.table import sharded_table


def test_the_variants_agree_and_bytes_a_token_are_counted(monkeypatch):
    monkeypatch.setattr(loss, "SHAPES", {"ptb": replace(TINY, name="ptb")})
    result = run_sharded_bench(rounds=1)
    values = {m.name: m.value for m in result.measurements}
    assert values[SHARDED] == pytest.approx(values[ONE], rel=1e-5)
    K, E = TINY.num_components, TINY.embedding_size
    # And eight numbers once a call: whether both have the same tokens.
    assert result.sent["forward"] == pytest.approx(4 * 3 * K, rel=0.1)
    assert result.sent["backward"] == 4 * K * E
    assert [m.best > 0 for m in result.measurements] == [True] * 3
    assert len(sharded_table(result).rows) == 3


def test_another_loss_is_an_error():
    with pytest.raises(RuntimeError, match="loss of two processes must be 2.000000 within"):
        check_values({ONE: 2.0, SHARDED: 2.1})
