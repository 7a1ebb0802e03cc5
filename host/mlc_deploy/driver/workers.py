"""Processes that compile kernels: several at once, and isolated, since LLVM ends the process when
it cannot select an instruction.

They are plain child processes that exchange pickled requests and answers through pipes. Those of
`multiprocessing` would each run the user's script again (unless it is guarded), or be forked, which
is unsound beside threads; and when one ends, its task is not known.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar

R = TypeVar("R")

END_SECONDS = 5.0  # for a process that closed its pipe to end
START_SECONDS = 60.0  # of CPU time, for the imports of a process's first task
GENTLE = 19  # niceness: next to nothing of a core that another program wants
AUTOGROUP_TRIES = 100  # to set the session's niceness: about five seconds
MOST_LEFT = 500_000  # objects left by tasks: some 60 MB; collecting cycles takes 0.1 s
MOST_SHARING = 20  # wall time over CPU time, at most, on a shared core

# Cycles are collected between tasks, when nearly all objects of a task are garbage; imports make
# few.
START = """
import gc, sys
gc.disable()
memory, niceness = map(int, sys.argv[1:3])
sys.path[:] = sys.argv[5:]
from mlc_deploy.driver.workers import serve
serve(memory, niceness, float(sys.argv[3]), sys.argv[4])
"""
BEGINS = pickle.dumps(None)
# Math libraries start threads when numpy is imported; a worker does not need them.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class WorkerDied(Exception):
    """A worker ended during a task: `how`, and the last `words` on its stderr."""

    def __init__(self, how: str, words: str) -> None:
        super().__init__(how, words)
        self.how, self.words = how, words


class WorkerTimeout(WorkerDied):
    """A worker was ended because its task took too long."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool(Executor):
    """`count` processes as an executor of concurrent.futures. Submitted functions must be
    picklable: found in their module by name.

    A task's future raises WorkerDied if its process ended, and WorkerTimeout if the task took more
    than `seconds`. These are CPU seconds where the system tells them, so that a busy machine does
    not look like an endless task. `memory`: bytes of address space for a process, where the system
    has such a limit. `gently`: other programs get most of a core. `imports`: a module to import at
    once, "" for none. Leaving the context or shutdown() ends the processes, even during a task.
    """

    def __init__(
        self,
        count: int,
        *,
        seconds: float | None = None,
        memory: int | None = None,
        gently: bool = False,
        imports: str = "",
    ) -> None:
        self._workers = [_Worker(seconds, memory, gently, imports) for _ in range(count)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        assert not kwargs, "a worker takes positional arguments only"
        return self._threads.submit(self._run, fn, args)

    def each(
        self,
        function: Callable[..., R],
        tasks: Sequence[tuple[Any, ...]],
        ended: Callable[[], None] = lambda: None,
    ) -> list[R | WorkerDied]:
        """function(*task) for each task, in order. ended() is called in this thread after each
        awaited task.

        If a worker ends, only its task is lost: WorkerDied replaces the result. The error of the
        first task that raises is raised here.
        """

        def result(future: Future[R]) -> R | WorkerDied:
            try:
                return future.result()
            except WorkerDied as died:
                return died
            finally:
                ended()

        return [result(future) for future in [self.submit(function, *task) for task in tasks]]

    def _run(self, function: Callable[..., R], task: tuple[Any, ...]) -> R:
        worker = self._idle.get()
        try:
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


class _Worker:
    """A child process; if it ended, the next task gets another."""

    def __init__(
        self, seconds: float | None, memory: int | None, gently: bool, imports: str
    ) -> None:
        self._seconds, self._memory, self._gently = seconds, memory, gently
        self._imports = imports
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes]
        self._over = False
        self._starting = threading.Lock()  # guards _process and _over
        self._started()  # now, so that it imports its modules meanwhile

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, started if need be. Raises WorkerDied after `end`."""
        with self._starting:
            if self._over:
                raise WorkerDied("the end of all workers", "")
            if self._process is None:
                niceness = GENTLE if self._gently else 0
                told = self._memory or 0, niceness, self._seconds or 0, self._imports
                self._errors = tempfile.TemporaryFile()
                self._process = subprocess.Popen(
                    [sys.executable, "-c", START, *map(str, told), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env={**os.environ, **ONE_THREAD},
                    # A terminal's Ctrl-C goes to all of a group: this process decides alone.
                    start_new_session=self._gently,
                    process_group=None if self._gently else 0,
                )
            return self._process

    def ask(self, function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
        """Returns function(*task) or raises its error; raises WorkerDied if there is no answer."""
        request = pickle.dumps((function, task), pickle.HIGHEST_PROTOCOL)
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        deadline = _Deadline(process, self._seconds and START_SECONDS)
        try:
            process.stdin.write(request)
            process.stdin.flush()
            pickle.load(process.stdout)  # BEGINS: imports are done and do not count for the task
            if deadline.met():
                deadline = _Deadline(process, self._seconds)
            answer, error = pickle.load(process.stdout)
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

    def _died(self, process: subprocess.Popen[bytes]) -> WorkerDied:
        try:
            status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        self.close()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return WorkerDied(how, words)

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
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):  # unwritten bytes are lost
                    pipe.close()
        self._errors.close()


class _Deadline:
    """Ends a process after some seconds of CPU time, or MOST_SHARING times as many of wall time,
    unless it is met before."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float | None) -> None:
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


def serve(memory: int, niceness: int, seconds: float, imports: str) -> None:
    """A worker's main loop. It ends with stdin, so also when the parent ends.

    memory: bytes of address space that the worker may have. seconds: CPU time for a task. Both are
    unlimited if 0. niceness: as `nice` has it. imports: a module that tasks need, or "".
    """
    if memory:
        _limit(memory)
    if niceness:
        _give_way(niceness)
    if imports:
        import_module(imports)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed lines must not mix with answers
    while True:
        try:
            function, task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if not gc.get_freeze_count():
            gc.freeze()  # modules and tables stay
        answers.write(BEGINS)
        answers.flush()
        _bound(seconds)
        answer: Any = None
        error: Exception | None = None
        try:
            answer = function(*task)
        except Exception as raised:
            raised.add_note("in a worker process:\n" + traceback.format_exc())
            error = raised
        answers.write(pickle.dumps((answer, error), pickle.HIGHEST_PROTOCOL))
        answers.flush()
        del function, task, answer, error
        if gc.get_count()[0] > MOST_LEFT:
            gc.collect()
            gc.freeze()
            give_back()


def give_back() -> None:
    """Returns free memory to the system. glibc otherwise keeps most of what the largest task
    took."""
    with suppress(AttributeError, OSError, TypeError):  # another C library, or none
        ctypes.CDLL(None).malloc_trim(0)


def _limit(memory: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # a system without such a limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _bound(seconds: float) -> None:
    """Ends this process if a task takes far too long and the parent is gone; a living parent ends
    it earlier (_Deadline). 0 for no bound."""
    with suppress(AttributeError):  # a system without timers
        signal.setitimer(signal.ITIMER_PROF, MOST_SHARING * seconds)


def _give_way(niceness: int) -> None:
    """Leaves the cores to other programs. Linux first divides them among sessions, each with its
    own niceness, then among a session's processes. This process has a session of its own."""
    with suppress(AttributeError):  # a system without niceness
        os.nice(niceness)
    session = Path("/proc/self/autogroup")
    for _ in range(AUTOGROUP_TRIES if session.exists() else 0):
        try:
            session.write_text(str(niceness))
            return
        except BlockingIOError:  # Linux takes one write in 0.1 s, from all processes together
            time.sleep(0.1 * random.random())
        except OSError:
            return
