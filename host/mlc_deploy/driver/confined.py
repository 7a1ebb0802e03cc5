"""Functions on what a stranger wrote, in a process of their own with limits on time and memory:
neither an endless loop, nor a huge text, nor a crash reaches this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..files.limits import Limit, amount
from .children import How
from .workers import Worker, WorkerDied, WorkerTimeout

R = TypeVar("R")


class Refused(Exception):
    """What such a function says against its arguments. The text may be the stranger's."""


class Confined:
    """Such a process; after it ended, the next call gets another. imports: the module of the
    functions. memory: more bytes than the limit says. It ends with this object, or with this
    process. A system without limits of memory bounds the time alone."""

    def __init__(self, imports: str, seconds: Limit, memory: Limit, more: int = 0) -> None:
        self._seconds, self._memory = seconds, memory.most + more
        self._worker = Worker(How(float(seconds.most), self._memory, 0, imports))
        weakref.finalize(self, self._worker.close)

    def call(self, function: Callable[..., R], *task: Any) -> R:
        """function(*task) there. Raises Refused, also for what passes a limit."""
        try:
            answer: R = self._worker.ask(function, task)
            return answer
        except WorkerTimeout:
            limit = amount(self._seconds.most, self._seconds.unit)
            raise Refused(f"it takes more than {limit}") from None
        except MemoryError:
            raise Refused(self._too_large()) from None
        except WorkerDied as died:
            if "memory allocation of" in died.words or "MemoryError" in died.words:
                raise Refused(self._too_large()) from None
            raise Refused(f"it ends its process ({died.how})") from None

    def _too_large(self) -> str:
        return f"it takes more than {amount(self._memory, 'bytes')} of memory"
