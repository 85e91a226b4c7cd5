"""Tables are plain matrices, and their memory goes back to the system."""

import gc
import mmap

import pytest
import torch

from highrank.ops.loss.chunks import new_table


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0, 5), (3, 7), (1000, 2001), (1537, 2001)], ids=str)
def test_a_table_holds_what_is_written_into_it(shape, dtype):
    table = new_table(torch.zeros(1, dtype=dtype), *shape)
    assert table.shape == shape and table.dtype == dtype and table.is_contiguous()
    want = torch.randn(shape).to(dtype)
    table.copy_(want)
    assert torch.equal(table, want)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has such pages")
def test_memory_goes_back_to_the_system():
    before = resident_bytes()
    for _ in range(8):
        table = new_table(torch.zeros(1), 4000, 4000)
        table.fill_(1.0)
    assert resident_bytes() - before < 3 * table.nbytes
    view = table[10:20]
    del table
    assert view.sum() == 40_000
    del view
    gc.collect()
    assert resident_bytes() - before < 32 * 2**20


def test_without_large_pages_the_memory_is_torch_s(monkeypatch):
    class Refusing(mmap.mmap):
        def madvise(self, option):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    assert new_table(torch.empty(1, device="meta"), 2000, 2000).is_meta
    assert new_table(torch.zeros(1), 2000, 2000).fill_(2.0).sum() == 8_000_000


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has such pages")
def test_memory_is_private_and_asks_for_large_pages():
    """Shared memory, which mmap gives by default, follows another setting of the system."""
    found = None
    table = new_table(torch.zeros(1), 2000, 2000).fill_(1.0)
    address = table.data_ptr()
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                low, high = (int(part, 16) for part in words[0].split("-"))
                found = words[1] if low <= address < high else None
            elif found is not None and words[0] == "VmFlags:":
                assert found == "rw-p" and "hg" in words
                return
    raise AssertionError(f"{address:x} is in no mapping")
