"""`highrank runs` as a user meets it."""

import json


def test_runs_are_a_table_and_json(highrank, tmp_path):
    code, printed, errors = highrank("runs", ".")
    assert code == 0 and errors == "" and "tiny" in printed and "mos, K = 3" in printed
    assert max(map(len, printed.splitlines())) <= 80
    (found,) = json.loads(highrank("runs", ".", "--json")[1])
    assert found["folder"] == "tiny" and f"{found['measured'][0]['valid']:.2f}" in printed
    (tmp_path / "config.json").write_text("{")
    code, printed, _ = highrank("runs", tmp_path.parent)
    assert code == 0 and "(damaged): " in printed
    assert highrank("runs", tmp_path)[1].startswith(f"No runs in {tmp_path}")
    assert highrank("runs", "nowhere")[0] == 2
