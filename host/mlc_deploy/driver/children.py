"""Child processes that serve tasks, one after the other: pickled requests come through a pipe, and
pickled answers go back through another.

Those of `multiprocessing` would run the user's script again, unless it is guarded, or be forked,
which is unsound beside threads. So a process that may have such threads spawns its children; the
command line's, which has none, forks them, and they need not import the compiler again.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

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
from mlc_deploy.driver.children import serve
serve(memory, niceness, float(sys.argv[3]), sys.argv[4])
"""
BEGINS = pickle.dumps(None)
# Math libraries start threads when numpy is imported; a worker does not need them.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class How:
    """How a process serves. seconds: CPU time for a task. memory: bytes of address space for the
    process. Both are unlimited if 0. niceness: as `nice` has it. imports: a module that tasks need,
    or ""."""

    seconds: float
    memory: int
    niceness: int
    imports: str


class Child(ABC):
    """A process that serves. requests, answers: the pipes to it and from it."""

    requests: IO[bytes]
    answers: IO[bytes]
    pid: int

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile()

    def words(self) -> str:
        """What it wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        for pipe in (self.requests, self.answers, self.errors):
            with suppress(OSError):  # unwritten bytes are lost
                pipe.close()

    @abstractmethod
    def kill(self) -> None:
        """Ends it, if it has not ended."""

    @abstractmethod
    def status(self, seconds: float | None = None) -> int | None:
        """Its exit status, or a signal's negative number; None if it does not end in time."""


class Spawned(Child):
    """A process that begins with nothing of this one."""

    def __init__(self, how: How) -> None:
        super().__init__()
        told = how.memory, how.niceness, how.seconds, how.imports
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, told), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **ONE_THREAD},
            # A terminal's Ctrl-C goes to all of a group: this process decides alone.
            start_new_session=how.niceness > 0,
            process_group=None if how.niceness else 0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.requests, self.answers = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def status(self, seconds: float | None = None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Forked(Child):
    """A copy of this process."""

    def __init__(self, how: How) -> None:
        super().__init__()
        asked, requests = os.pipe()
        answers, answered = os.pipe()
        streams = asked, answered, self.errors.fileno()
        context = multiprocessing.get_context("fork")
        self._process: BaseProcess = context.Process(target=_as_copy, args=(streams, how))
        self._process.start()
        for end in (asked, answered):
            os.close(end)
        self.requests, self.answers = open(requests, "wb"), open(answers, "rb")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def status(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode


def _as_copy(streams: tuple[int, int, int], how: How) -> None:
    """Serves as Spawned does: with these as stdin, stdout and stderr, and no other file."""
    gc.disable()
    os.setsid() if how.niceness else os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(len(streams), os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    serve(how.memory, how.niceness, how.seconds, how.imports)


def serve(memory: int, niceness: int, seconds: float, imports: str) -> None:
    """A child's main loop. It ends with stdin, so also when the parent ends. `How` says what the
    arguments are."""
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
