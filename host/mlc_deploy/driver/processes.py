"""The processes that compile a program's kernels. They may start before its kernels are known."""

from __future__ import annotations

import hashlib
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from mlc_rpc.closing import Closing

from ..passes.context import option
from .cache import Cache, user_folder
from .workers import WorkerPool, cores

FEW = 8  # kernels, compiled in the time that a process takes to start
LARGE = 1 << 20  # bytes: most models in smaller files have few kernels
FOLDER = "models"  # of the cache: an empty entry for each model that was compiled
IMPORTS = "mlc_deploy.driver.kernels"


class Processes(Closing):
    """Processes that start when kernels are missing in the cache, or before. `most`: how many, by
    default the PassContext's number, one per core. `forked`: as copies of this one (WorkerPool)."""

    def __init__(self, most: int | None = None, *, forked: bool = False) -> None:
        self._most = most or option("compile.workers") or cores()
        self._forked = forked
        self._pool: WorkerPool | None = None
        self._key: bytes | None = None

    def start_for(self, file: Path, how: str) -> None:
        """Starts the processes for a model's file that is not read yet, if its kernels are probably
        missing: spawned ones import the compiler meanwhile. how: the options to compile it with."""
        try:
            status = file.stat()
        except OSError:
            return  # whoever reads the file says why
        text = f"{file.resolve()} {status.st_size} {status.st_mtime_ns} {how}"
        self._key = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=32).digest()
        store = _models()
        missing = store is None or store.get(self._key) is None
        if missing and status.st_size >= LARGE:
            self._started(self._most, self._forked)

    def compiled(self) -> None:
        """Notes that the kernels of the file that start_for was told are in the cache now."""
        store = _models()
        if self._key is not None and store is not None and store.get(self._key) is None:
            store.put(self._key, b"")

    def for_missing(self, count: int) -> WorkerPool | None:
        """The processes, started if need be; None if this process compiles `count` kernels as
        fast."""
        if self._pool is None and count > FEW:
            self._started(min(self._most, count))
        return self._pool

    def _started(self, count: int, forked: bool = False) -> None:
        if count > 1 and sys.executable:
            self._pool = WorkerPool(count, imports=IMPORTS, forked=forked)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def processes_of(workers: int | Processes | None) -> AbstractContextManager[Processes]:
    """Those processes, which stay; or so many, which end with the context."""
    return nullcontext(workers) if isinstance(workers, Processes) else Processes(workers)


def _models() -> Cache | None:
    return Cache(user_folder() / FOLDER) if option("compile.cache") else None
