"""Processes that compile kernels: several at once, and apart, since LLVM ends a process where it
finds no instruction for something.

They are plain child processes that read requests and write answers, pickled, through pipes. Those
of `multiprocessing` would run the user's script once more in each (unless it is guarded), or would
be forked, which is unsound beside threads; and where one of them ends, no one knows at which task.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import IO, Any, TypeVar

R = TypeVar("R")

END_SECONDS = 5.0  # for a process that closed its pipe to end

START = "import sys; sys.path[:] = sys.argv[1:]; from mlc_deploy.workers import serve; serve()"
# Math libraries start threads when numpy is imported, and a worker has no use for them.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class WorkerDied(Exception):
    """A worker ended in the middle of a task: `how`, and its last words on stderr."""

    def __init__(self, how: str, words: str) -> None:
        super().__init__(how, words)
        self.how, self.words = how, words


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_workers(
    function: Callable[..., R], tasks: Sequence[tuple[Any, ...]], count: int
) -> list[R | WorkerDied]:
    """function(*task) for each task, in their order, by `count` processes.

    function must be known in its module by its name. A worker that ends costs its task alone: then
    WorkerDied stands for the result. The first task for which function raises decides what is
    raised here. However this is left, by an interrupt too, no process stays.
    """
    workers = [_Worker() for _ in range(count)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run(task: tuple[Any, ...]) -> R | WorkerDied:
        worker = idle.get()
        try:
            answer: R = worker.ask(function, task)
            return answer
        except WorkerDied as died:
            return died
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(count)
    try:
        return list(threads.map(run, tasks))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()  # a thread that waits for its answer finds the pipe's end
        threads.shutdown()
        for worker in workers:
            worker.close()


class _Worker:
    """A child process; where it ended, the next task gets another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._started()  # now, so that it imports what it needs meanwhile

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **ONE_THREAD},
            )
        return self._process

    def ask(self, function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
        """function(*task), or what it raised; WorkerDied when there is no answer."""
        request = _pickled((function, task))
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            answer, error = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise self._died(process) from None
        if error is not None:
            raise error
        return answer

    def _died(self, process: subprocess.Popen[bytes]) -> WorkerDied:
        try:
            status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        self.close()
        self._errors = tempfile.TemporaryFile()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return WorkerDied(how, words)

    def kill(self) -> None:
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
                with suppress(OSError):  # what was not written yet goes nowhere
                    pipe.close()
        self._errors.close()


def _pickled(thing: object) -> bytes:
    """As pickle.dumps; and mappings that cannot be changed, as nodes of the loop IR have."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, MappingProxyType: _reduced}
    pickler.dump(thing)
    return file.getvalue()


def _reduced(mapping: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return _frozen, (dict(mapping),)


def _frozen(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


def serve() -> None:
    """A worker's life: it ends with its stdin, which is when the process that asks ends, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it goes to all: the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a line that somebody prints is no answer
    while True:
        try:
            function, task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: Any = None
        error: Exception | None = None
        try:
            answer = function(*task)
        except Exception as raised:
            raised.add_note("in a worker process:\n" + traceback.format_exc())
            error = raised
        answers.write(_pickled((answer, error)))
        answers.flush()
