"""Processes that compile kernels: several at once, and isolated, since LLVM ends the process when
it cannot select an instruction."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from .children import MOST_SHARING, Child, Forked, How, Spawned

R = TypeVar("R")

END_SECONDS = 5.0  # for a process that closed its pipe to end
GENTLE = 19  # niceness: next to nothing of a core that another program wants
ATTEMPTS = 3  # at a task whose process others kill: a system out of memory takes the largest one
START_SECONDS = 60.0  # of CPU time, for the imports of a process's first task


class WorkerDied(Exception):
    """A worker ended during a task: `how`, and the last `words` on its stderr."""

    def __init__(self, how: str, words: str) -> None:
        super().__init__(how, words)
        self.how, self.words = how, words


class WorkerTimeout(WorkerDied):
    """A worker was ended because its task took too long."""


class WorkerKilled(WorkerDied):
    """A worker was ended by SIGKILL, and not by us: by a system out of memory, or somebody."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool(Executor):
    """`count` processes as an executor of concurrent.futures. Submitted functions must be
    picklable: found in their module by name.

    A task's future raises WorkerDied if its process ended, and WorkerTimeout if the task took more
    than `seconds`. A task whose process others kill is tried ATTEMPTS times. These are CPU seconds
    where the system tells them, so that a busy machine does not look like an endless task.
    `memory`: bytes of address space for a process, where the system has such a limit. `gently`:
    other programs get most of a core. `imports`: a module to import at once, "" for none. `forked`:
    this process imports the module, and the others begin as its copies; no other thread of it may
    hold a lock. One in the place of another is never a copy.
    Leaving the context or shutdown() ends the processes, even during a task.
    """

    def __init__(
        self,
        count: int,
        *,
        seconds: float | None = None,
        memory: int | None = None,
        gently: bool = False,
        imports: str = "",
        forked: bool = False,
    ) -> None:
        if forked and imports:
            import_module(imports)
        how = How(seconds or 0.0, memory or 0, GENTLE if gently else 0, imports)
        self._workers = [Worker(how, forked) for _ in range(count)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        assert not kwargs, "a worker takes positional arguments only"
        return self._threads.submit(self._run, fn, args)

    def _run(self, function: Callable[..., R], task: tuple[Any, ...]) -> R:
        worker = self._idle.get()
        try:
            for _ in range(ATTEMPTS - 1):
                with suppress(WorkerKilled):
                    again: R = worker.ask(function, task)
                    return again
            answer: R = worker.ask(function, task)
            return answer
        finally:
            self._idle.put(worker)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.end()  # a thread that waits for an answer then reads the pipe's end
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()


class Worker:
    """A child process; if it ended, the next task gets another. WorkerPool describes the rest."""

    def __init__(self, how: How, forked: bool = False) -> None:
        self._how = how
        self._process: Child | None = None
        self._over = False
        self._starting = threading.Lock()  # guards _process and _over
        self._started(forked)  # now, so that it imports its modules meanwhile

    def _started(self, forked: bool = False) -> Child:
        """The process, started if need be. Raises WorkerDied after `end`."""
        with self._starting:
            if self._over:
                raise WorkerDied("the end of all workers", "")
            if self._process is None:
                self._process = (Forked if forked else Spawned)(self._how)
            return self._process

    def ask(self, function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
        """Returns function(*task) or raises its error; raises WorkerDied if there is no answer."""
        request = pickle.dumps((function, task), pickle.HIGHEST_PROTOCOL)
        process = self._started()
        seconds = self._how.seconds or None
        deadline = _Deadline(process, seconds and START_SECONDS)
        try:
            process.requests.write(request)
            process.requests.flush()
            pickle.load(process.answers)  # BEGINS: imports are done and do not count for the task
            if deadline.met():
                deadline = _Deadline(process, seconds)
            answer, error = pickle.load(process.answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            died = self._died(process)
            if deadline.met():
                raise died from None
            raise WorkerTimeout(f"no end in {deadline.seconds:g} s", died.words) from None
        except Exception as error:  # such as an object that cannot be made from its `args`
            deadline.met()
            self.close()  # its pipe holds the rest of the answer
            words = f"{type(error).__name__}: {error}"
            raise WorkerDied("an answer that cannot be unpickled", words) from None
        if not deadline.met():  # it passed just as the worker answered
            self._died(process)
        if error is not None:
            raise error
        return answer

    def _died(self, process: Child) -> WorkerDied:
        status = process.status(END_SECONDS)
        kind = WorkerKilled if status == -signal.SIGKILL and not self._over else WorkerDied
        if status is None:
            process.kill()
            status = process.status()
        assert status is not None, "it was killed"
        words = process.words()
        self.close()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return kind(how, words)

    def end(self) -> None:
        """Ends the process, even while another thread waits for it, and starts no other."""
        with self._starting:
            self._over = True
            process = self._process  # another thread may be closing it
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process and forgets it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.status()
            process.close()


class _Deadline:
    """Ends a process after some seconds of CPU time, or MOST_SHARING times as many of wall time,
    unless it is met before."""

    def __init__(self, process: Child, seconds: float | None) -> None:
        self._process, self._passed, self._lock = process, False, threading.Lock()
        self._timer: threading.Timer | None = None
        self.seconds = seconds or 0.0
        if seconds is not None:
            self._worked = _seconds_worked(process.pid)
            self._latest = time.monotonic() + MOST_SHARING * seconds
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            worked = _seconds_worked(self._process.pid)
            if self._worked is not None and worked is not None:
                left = self.seconds - (worked - self._worked)
                if left > 0 and time.monotonic() < self._latest:
                    self._wait(left)
                    return
            self._passed = True
            self._process.kill()

    def met(self) -> bool:
        """Stops the deadline; whether it was met, that is, had not passed yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return not self._passed


def _seconds_worked(pid: int) -> float | None:
    """The CPU time of a process; None if the system does not tell."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
