"""Arrays from numpy files from outside, .npy and .npz.

A header of 128 bytes can ask for terabytes, and a small archive can unpack to them. So sizes in
headers are checked against the size of the file before memory is allocated. Python objects are
never read.
"""

from __future__ import annotations

import errno
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .archives import is_inside
from .limits import UNPACKED_BYTES, UNPACKED_RATIO
from .outside import open_file

Array = NDArray[Any]

SUFFIX = ".npy"
MOST_UNPACKED = 4 * UNPACKED_BYTES.most  # bytes of one compressed array
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Errors of zipfile for damaged archives, and of numpy for damaged headers.
DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, ValueError, TypeError, EOFError,
    SyntaxError, TokenError, NotImplementedError, RuntimeError, IndexError, KeyError, OverflowError,
)  # fmt: skip
NO_ARRAYS = "this is not a numpy file, or it holds Python objects"


class Unreadable(Exception):
    """No array can be read from a file. The message gives the reason."""


class Arrays(Mapping[str, Array]):
    """The arrays of an .npz. Each is read at access, which may raise Unreadable."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive, self._size = archive, size
        self._left = self._most = max(UNPACKED_BYTES.most, UNPACKED_RATIO * size)
        infos = (info for info in archive.infolist() if info.filename.endswith(SUFFIX))
        self._infos = {info.filename.removesuffix(SUFFIX): info for info in infos}
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        info = self._infos[name]
        if not is_inside(info, self._size):
            raise Unreadable(NO_ARRAYS)
        unpacked = info.compress_type != zipfile.ZIP_STORED
        # Entries may overlap, so those that are not compressed count, too.
        self._left -= info.file_size if name not in self._read else 0
        self._read.add(name)
        most = MOST_UNPACKED if unpacked else self._most
        if self._left < 0 or info.file_size > most:
            raise Unreadable(
                f"'{name}' unpacks to {info.file_size:,} bytes, and at most "
                f"{min(most, self._most):,} are unpacked"
            )
        try:
            with self._archive.open(info) as stream:
                return _array(stream, info.file_size)
        except DAMAGED:
            raise Unreadable(NO_ARRAYS) from None
        except OSError as error:
            if error.errno != errno.EINVAL:  # an entry that begins before the file does
                raise
            raise Unreadable(NO_ARRAYS) from None

    def __iter__(self) -> Any:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


@contextmanager
def opened(path: Path) -> Any:
    """The array of an .npy, or the Arrays of an .npz. Raises Unreadable, OSError."""
    with open_file(path) as stream:
        begin = stream.read(4)
        size = stream.seek(0, 2)
        stream.seek(0)
        if begin not in ZIP:
            try:
                array = _array(stream, size)
            except DAMAGED:
                raise Unreadable(NO_ARRAYS) from None
            yield array
            return
        try:
            archive = zipfile.ZipFile(stream)
        except DAMAGED:
            raise Unreadable(NO_ARRAYS) from None
        with archive:
            yield Arrays(archive, size)


def _array(stream: IO[bytes], size: int) -> Array:
    """The array of a stream of `size` bytes. Raises Unreadable, or one of DAMAGED."""
    version = npy.read_magic(stream)
    try:
        # Version 3 is not supported: it is for records with non-Latin field names.
        shape, by_columns, dtype = HEADERS[version](stream)
    except MemoryError:  # Python's parser raises it for deep nesting
        raise Unreadable(NO_ARRAYS) from None
    if dtype.hasobject or not dtype.itemsize or any(extent < 0 for extent in shape):
        raise Unreadable(NO_ARRAYS)
    needed, there = math.prod(shape) * dtype.itemsize, max(size - stream.tell(), 0)
    if needed > there:
        raise Unreadable(f"its header says {needed:,} bytes, and the file has {there:,}")
    try:
        content = bytearray(needed)
    except MemoryError:  # Python's own message lacks the size
        raise MemoryError(f"unable to allocate {needed:,} bytes for an array") from None
    left = memoryview(content)
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise Unreadable(NO_ARRAYS)
        left = left[count:]
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")
