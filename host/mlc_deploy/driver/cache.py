"""A store of bytes by digest in the user's cache folder, which many processes may share.

The cache never fails a job. An entry that cannot be read counts as missing; one that cannot be
written is dropped. Both are logged, the first failed write as a warning. A folder that other users
may write to is not used, because its kernels run on boards.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from mlc_rpc.own import absolute, why_foreign

from ..files.outside import open_file
from ..files.unfinished import write_whole

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20  # of all entries of a folder
TRIM_SECONDS = 600  # least time between two checks of a folder's size
CHECK_BYTES = 16  # of the digest in front of an entry


def user_folder() -> Path:
    """$MLC_CACHE_DIR; else `mlc-deploy` in $XDG_CACHE_HOME, in %LOCALAPPDATA% or in ~/.cache."""
    if own := os.environ.get("MLC_CACHE_DIR"):
        return Path(own)
    base = absolute("XDG_CACHE_HOME") or absolute("LOCALAPPDATA")
    return (base or Path("~/.cache").expanduser()) / "mlc-deploy"


class Cache:
    """Entries in files named after their keys, each after a digest of its content. When they grow
    larger than `most_bytes` together, the least recently read ones are removed."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._told = False

    def get(self, key: bytes) -> bytes | None:
        """The entry of a key; None if it is missing or damaged."""
        if self._is_foreign():
            return None
        path = self._path(key)
        try:
            with open_file(path) as file:
                why = why_foreign(path, os.fstat(file.fileno()))
                data = b"" if why else file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.debug("not read: %s", error)
            return None
        if why:
            log.debug("not read: %s: %s", path, why)
            return None
        content = data[CHECK_BYTES:]
        if data[:CHECK_BYTES] != _check(key, content):
            log.debug("damaged: %s", path)
            return None
        with suppress(OSError):  # a read-only disk does not keep the order of use
            os.utime(path)
        return content

    def put(self, key: bytes, content: bytes) -> None:
        """Keeps content under a key. The file appears whole or not at all."""
        if self._is_foreign():
            return
        path = self._path(key)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, _check(key, content) + content, mode=0o600)
            self._trim()
        except OSError as error:
            # Users see it once: without a cache every job takes long.
            log.log(logging.DEBUG if self._told else logging.WARNING, "not kept: %s", error)
            self._told = True

    def _is_foreign(self) -> bool:
        why = why_foreign(self.folder)
        if why and not self._told:
            log.warning(
                "the cache %s is not used: %s; try: chown $USER, chmod go-w", self.folder, why
            )
            self._told = True
        return bool(why)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self.folder / name[:2] / name[2:]

    def _trim(self) -> None:
        """Removes the least recently used entries, at most once in TRIM_SECONDS."""
        stamp = self.folder / "trimmed"
        with suppress(FileNotFoundError):
            if 0 <= time.time() - stamp.stat().st_mtime < TRIM_SECONDS:
                return
        stamp.touch()
        found = []
        for path in self.folder.glob("*/*"):
            with suppress(FileNotFoundError):  # another process may have removed it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.most_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


def _check(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(key + content, digest_size=CHECK_BYTES).digest()
