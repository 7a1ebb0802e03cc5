"""Large data in mapped files: weights of models, read and written.

Only pages in use are in memory, and only until they are released. The next access reads them from
the file again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from weakref import WeakValueDictionary

Buffer = bytes | memoryview

IN_MEMORY = 64 << 20  # bytes that a Spool keeps in memory
PIECE = 16 << 20  # bytes of a piece that is read at once

_maps: WeakValueDictionary[tuple[Path, int, int], mmap.mmap] = WeakValueDictionary()


def mapped(path: Path) -> mmap.mmap:
    """The bytes of a file, read-only. All callers share one map. Raises OSError, and ValueError for
    an empty file."""
    with path.open("rb") as file:
        stat = path.stat()
        key = (path.resolve(), stat.st_size, stat.st_mtime_ns)
        found = _maps.get(key)
        if found is None:
            found = _maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return found


def release_mapped() -> None:
    """Releases the memory of all pages that were read from mapped files."""
    for found in list(_maps.values()):
        release(found)


def release(found: mmap.mmap) -> None:
    if hasattr(found, "madvise"):  # not on Windows
        found.madvise(mmap.MADV_DONTNEED)


def pieces(data: Buffer) -> Iterator[memoryview]:
    """All bytes, piece by piece. For a mapped file, only one piece is in memory at a time."""
    view = memoryview(data).cast("B")
    for begin in range(0, len(view), PIECE):
        yield view[begin : begin + PIECE]
        if isinstance(view.obj, mmap.mmap):
            release(view.obj)


class Spool:
    """Collects written bytes, at most `most`. More than `in_memory` bytes go to a file without a
    name, which lasts as long as the result of `finished`."""

    def __init__(self, most: int, in_memory: int = IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(in_memory)
        self._in_memory = in_memory
        if most > in_memory:
            self._file.rollover()

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def holds(self, data: memoryview, at: int) -> bool:
        """Whether the written bytes from `at` on equal data."""
        end = self._file.tell()
        self._file.seek(at)
        same = all(self._file.read(len(piece)) == piece for piece in pieces(data))
        self._file.seek(end)
        return same

    def finished(self) -> Buffer:
        """All written bytes. Nothing may be written afterwards."""
        size = self._file.tell()
        self._file.flush()
        if size <= self._in_memory:
            self._file.seek(0)
            return self._file.read()
        whole = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        self._file.close()
        return memoryview(whole)
