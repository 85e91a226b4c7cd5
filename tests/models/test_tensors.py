"""Tensor files: what is read is what was written, or an error."""

import pytest
import torch
from safetensors.torch import save_file

from highrank.models.tensors import content_sha256, read_shapes, read_tensors, write_tensors

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(2, dtype=torch.bfloat16)}


@pytest.fixture
def path(tmp_path):
    write_tensors(tmp_path / "x.safetensors", TENSORS)
    return tmp_path / "x.safetensors"


def test_tensors_come_back_with_their_shapes_and_types(path):
    found = read_tensors(path)
    assert sorted(found) == ["a", "b"]
    assert all(torch.equal(found[name], TENSORS[name]) for name in found)
    assert read_shapes(path) == {"a": (2,), "b": (2, 3)}
    (path.parent / "plain").touch()
    assert path.stat().st_mode == (path.parent / "plain").stat().st_mode


def test_every_flipped_bit_of_the_tensors_is_noticed(path):
    data = path.read_bytes()
    for at in range(len(data) - 28, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"x.safetensors (is damaged|must have finite)"):
            read_tensors(path)


def test_a_file_without_a_hash_is_refused(tmp_path):
    save_file(TENSORS, tmp_path / "bare")
    with pytest.raises(ValueError, match="bare is damaged: its tensors do not have the hash"):
        read_tensors(tmp_path / "bare")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(value, tmp_path):
    write_tensors(tmp_path / "odd", {"a": torch.tensor([1.0, value])})
    with pytest.raises(ValueError, match="odd must have finite numbers only, got others in a"):
        read_tensors(tmp_path / "odd")


def test_what_is_no_safetensors_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff" * 100)
    for read in (read_tensors, read_shapes):
        for name in ("x", "nowhere"):
            with pytest.raises(ValueError, match=f"{name} must be a whole safetensors file, got"):
                read(tmp_path / name)


def test_the_hash_is_of_values_types_and_shapes():
    content = {"a": torch.zeros(2, 3), "b": [1, 2.0, None, "x", (True, {})]}
    digest = content_sha256(content)
    assert digest == content_sha256({"a": torch.zeros(3, 2).T, "b": content["b"]})
    for other in (
        content | {"a": torch.zeros(3, 2)},
        content | {"a": torch.zeros(2, 3, dtype=torch.int32)},
        content | {"b": [1, 2, None, "x", (True, {})]},
        content | {"b": [1, 2.0, None, "x", (1, {})]},
        {"a": content["a"]},
    ):
        assert content_sha256(other) != digest
