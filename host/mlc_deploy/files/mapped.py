"""Large bytes that lie in files: weights of models as they are read, and as they are written.

They are mapped. Only pages in use are in memory, and only until they are released: the next look
reads them from the file again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from weakref import WeakValueDictionary

Buffer = bytes | memoryview

IN_MEMORY = 64 << 20  # bytes that a Spool keeps in memory
PIECE = 16 << 20  # bytes that are looked at together

_maps: WeakValueDictionary[tuple[Path, int, int], mmap.mmap] = WeakValueDictionary()


def mapped(path: Path) -> mmap.mmap:
    """A file's bytes, to be read; one map serves all who ask for it. Raises OSError, ValueError
    for an empty file."""
    with path.open("rb") as file:
        stat = path.stat()
        key = (path.resolve(), stat.st_size, stat.st_mtime_ns)
        found = _maps.get(key)
        if found is None:
            found = _maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return found


def release_mapped() -> None:
    """The pages of mapped files that were read need no memory any more."""
    for found in list(_maps.values()):
        release(found)


def release(found: mmap.mmap) -> None:
    if hasattr(found, "madvise"):  # not on Windows
        found.madvise(mmap.MADV_DONTNEED)


def pieces(data: Buffer) -> Iterator[memoryview]:
    """All bytes, one piece after the other, of which one alone is in memory where they are a mapped
    file's."""
    view = memoryview(data).cast("B")
    for begin in range(0, len(view), PIECE):
        yield view[begin : begin + PIECE]
        if isinstance(view.obj, mmap.mmap):
            release(view.obj)


class Spool:
    """Bytes as they are written, one after another, at most `most`. More than `in_memory` go to a
    file without a name, which lasts as long as what `finished` gives."""

    def __init__(self, most: int, in_memory: int = IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(in_memory)
        self._in_memory = in_memory
        if most > in_memory:
            self._file.rollover()

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def holds(self, data: memoryview, at: int) -> bool:
        """Whether the bytes from `at` on are these."""
        end = self._file.tell()
        self._file.seek(at)
        same = all(self._file.read(len(piece)) == piece for piece in pieces(data))
        self._file.seek(end)
        return same

    def finished(self) -> Buffer:
        """All that was written. Nothing is written after that."""
        size = self._file.tell()
        self._file.flush()
        if size <= self._in_memory:
            self._file.seek(0)
            return self._file.read()
        whole = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        self._file.close()
        return memoryview(whole)
