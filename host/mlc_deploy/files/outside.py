"""Files from outside, opened so that none can block or flood the reader.

Everything but regular files is refused before a byte is read: a pipe without a writer blocks, and
/dev/zero never ends. Problems are OSErrors with the reason in `strerror`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from .limits import RECORD_BYTES

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str | Path) -> BinaryIO:
    """A regular file, for reading. Raises OSError."""
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    refuse_special(path)  # opening a device can have an effect, and a socket cannot be opened
    descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    try:
        _refuse(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def refuse_special(path: str | Path) -> None:
    """Raises OSError unless the path is an existing regular file."""
    _refuse(os.stat(path).st_mode, path)


def read_file(path: str | Path, most: int = RECORD_BYTES.most) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path)
            )
        return file.read(size)


def _refuse(mode: int, path: str | Path) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def name_of(path: Path) -> str:
    """A file's name without its suffix, as text: its bytes as UTF-8 whatever the locale, and bytes
    that are none as `\\xff`. It goes into objects, records and pages."""
    return os.fsencode(path.stem).decode("utf-8", "backslashreplace")
