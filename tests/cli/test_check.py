"""`highrank check` of a run: sentences, JSON, and the exit code."""

import json

import pytest


def test_a_run_passes(highrank):
    code, out, _ = highrank("check", "tiny")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 10 and all(line.startswith("ok ") for line in lines)
    assert "sum to 1 … 1 after 4 contexts" in lines[0]
    assert any("with dynamic evaluation" in line for line in lines)


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_head_that_peeks_ends_with_code_1(highrank, monkeypatch, arguments):
    from highrank.heads.mos import MixtureOfSoftmaxes

    forward = MixtureOfSoftmaxes.forward

    def boosted(self, hidden, target=None, **options):
        found = forward(self, hidden, target, **options)
        return found._replace(output=found.output + 0.25)

    monkeypatch.setattr(MixtureOfSoftmaxes, "forward", boosted)
    code, out, _ = highrank("check", "tiny", *arguments)
    assert code == 1
    if arguments:
        found = {one["name"]: one for one in json.loads(out)["findings"]}
        assert found["sum"]["passed"] and not found["target"]["passed"]
        assert found["target"]["found"] == pytest.approx(0.25, abs=1e-4)
    else:
        assert "FAIL Scores differ from the distribution" in out and "0.25 nats" in out
