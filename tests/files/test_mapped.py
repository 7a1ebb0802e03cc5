"""Large bytes in files: one map for all who read, and files without names for what is written."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from mlc_deploy.files.mapped import PIECE, Spool, mapped, pieces, release_mapped


def test_one_map_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 64)
    whole = mapped(file)
    assert mapped(tmp_path / "." / "weights") is whole
    release_mapped()  # is read again
    assert whole[5] == 5
    file.write_bytes(b"others")
    assert mapped(file)[:6] == b"others"


@pytest.mark.parametrize(
    ("most", "in_memory", "in_file"),
    [(200, 4, True), (200, 1 << 20, False), (2 << 20, 1 << 20, False)],
)
def test_what_is_written_comes_back(most: int, in_memory: int, in_file: bool) -> None:
    spool, right = Spool(most, in_memory), bytes(range(200))
    spool.write(right[:50])
    assert spool.holds(memoryview(right)[10:40], 10)
    spool.write(memoryview(right)[50:])
    assert spool.holds(memoryview(right)[20:], 20)
    assert not spool.holds(memoryview(right)[20:], 21)
    assert not spool.holds(memoryview(right), 20)
    found = spool.finished()
    assert found == right and bytes(found[10:12]) == right[10:12]
    assert in_file == (isinstance(found, memoryview) and isinstance(found.obj, mmap.mmap))
    assert Spool(most, in_memory).finished() == b""


def test_pieces_are_all_of_it() -> None:
    data = bytes(PIECE) + b"end"
    found = list(pieces(data))
    assert [len(piece) for piece in found] == [PIECE, 3] and bytes(found[1]) == b"end"
    assert list(pieces(b"")) == []
