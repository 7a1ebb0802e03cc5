"""A lock on an open file. A process loses it when it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 62  # a byte beyond every file, so that others may still read the file

    @contextmanager
    def locked(file: IO[bytes], *, exclusive: bool) -> Iterator[None]:
        """Waits until no other process holds the lock."""
        place = file.tell()
        file.seek(FAR)
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                break
            except OSError:  # LK_LOCK gives up after ten seconds
                continue
        file.seek(place)
        try:
            yield
        finally:
            file.flush()
            file.seek(FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    @contextmanager
    def locked(file: IO[bytes], *, exclusive: bool) -> Iterator[None]:
        """Waits until no other process holds the lock; if not exclusive, until none holds it
        exclusively."""
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        try:
            yield
        finally:
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)
