"""How the process `mlc-deploy` ends: by itself, or by a signal at any moment.

SIGINT (Ctrl-C), SIGTERM and SIGHUP end it at once, with status 128 + their number. They raise no
exception, which other code could swallow. All descendant processes end, also those of libraries,
and temporary files are removed. A command that must report first asks for a KeyboardInterrupt
instead (`orderly`).

The end may come while the main thread imports, writes or logs. So it imports nothing and takes no
lock but its own.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import NoReturn

from ..files.unfinished import remove_unfinished
from .descendants import end_descendants
from .signals import SIGNALS, leave, say, set_handlers, told

PATIENCE_SECONDS = 30.0  # from a KeyboardInterrupt to the end at the latest
ONE_PRESS_SECONDS = 0.1  # one key press may signal twice: the group, and through a parent
TERM_SECONDS = 0.5  # for a process to end after SIGTERM
KILL_SECONDS = 5.0  # for a process to end after SIGKILL

_ending: _Ending | None = None


def end_with(job: Callable[[], int]) -> NoReturn:
    """Runs the job and ends this process, with the job's status or a signal's."""
    global _ending
    _ending = _Ending()
    _ending.watch()
    status = 1
    try:
        status = job()
    except SystemExit as ended:  # rich raises it when nobody reads its output
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        if _ending.number is None:
            sys.excepthook(*sys.exc_info())
    _ending.finish(status)


def orderly() -> AbstractContextManager[None]:
    """A context in which the first signal raises KeyboardInterrupt. A second signal ends the
    process at once; otherwise it ends after PATIENCE_SECONDS."""
    return _ending.orderly() if _ending else nullcontext()


def signalled() -> bool:
    """Whether a signal has ended the job: later exceptions are consequences."""
    return _ending is not None and _ending.number is not None


def alone() -> bool:
    """Whether this process runs the command line and nothing else, so that it may be forked: the
    thread that waits for signals holds no lock."""
    return _ending is not None and sys.platform == "linux" and threading.active_count() == 2


class _Ending:
    """The state of the end: the signal, the temporary folder, the terminal."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the first signal
        self._since = 0.0  # when that was
        self._asked = self._raises = False
        self._one = threading.RLock()  # one thread ends the process; reentrant for a handler in it
        self._mute = logging.NullHandler()
        self._restore_terminal = _terminal()
        self._folder: str | None = None
        with suppress(OSError):  # commands that need no folder work without it
            name = f"mlc-deploy-{os.getpid()}-{secrets.token_hex(4)}"
            self._folder = os.path.join(tempfile.gettempdir(), name)
        # A handler waits while the main thread runs C code. The socket does not.
        self._bell, self._ringer = socket.socketpair()
        self._ringer.setblocking(False)

    def watch(self) -> None:
        """From now on a signal ends the process and its descendants."""
        set_handlers(self._handle)
        signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()
        if hasattr(os, "register_at_fork"):  # a library's child gets its own signals
            os.register_at_fork(before=_hold, after_in_parent=_let, after_in_child=_forget)
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._unraisable, self._thread_failed
        if self._folder is not None:
            with suppress(OSError):
                os.mkdir(self._folder, 0o700)
                tempfile.tempdir = os.environ["TMPDIR"] = self._folder

    @contextmanager
    def orderly(self) -> Iterator[None]:
        self._asked = self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def finish(self, status: int) -> NoReturn:
        """The end without a signal, or the orderly one after a signal."""
        self._raises = False
        if self.number is not None:
            if status != 128 + signal.SIGINT:  # whose message is out already
                say(told(self.number))
            status = 128 + self.number
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # it may be closed or None
                stream.flush()
        with self._one:
            try:
                self._clean()
            finally:
                os._exit(status)

    def _end(self, number: int) -> NoReturn:
        """The end by a signal, at once."""
        with self._one:
            try:
                self._note(number)
                self._clean()
            finally:
                leave(number, self._restore_terminal())

    def _note(self, number: int) -> None:
        if self.number is None:
            self.number, self._since = number, time.monotonic()
        logging.lastResort = self._mute  # threads may complain while things end

    def _clean(self) -> None:
        gc.disable()  # finalizers could wait for another thread
        end_descendants(TERM_SECONDS, KILL_SECONDS)
        remove_unfinished()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._raises and self.number is None:
            self._note(number)
            raise KeyboardInterrupt
        if not self._is_same_press():
            self._end(number)

    def _is_same_press(self) -> bool:
        """Whether a signal follows the first one so soon that both are one key press."""
        if not self._asked or self.number is None:
            return False
        return time.monotonic() - self._since < ONE_PRESS_SECONDS

    def _wait(self) -> None:
        """The thread that ends the process if the main thread does not."""
        number = self._next_signal(None)
        assert number is not None
        if self._asked:
            began = time.monotonic()
            while (left := began + PATIENCE_SECONDS - time.monotonic()) > 0:
                if self._next_signal(left) and time.monotonic() - began >= ONE_PRESS_SECONDS:
                    break
        self._end(number)

    def _next_signal(self, seconds: float | None) -> int | None:
        """Waits for one of SIGNALS; None after `seconds`."""
        self._bell.settimeout(seconds)
        while True:
            try:
                number = self._bell.recv(1)[0]
            except TimeoutError:
                return None
            if number in SIGNALS:
                return number

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """A KeyboardInterrupt in a finalizer is lost, so it ends the process here."""
        if self.number is None:
            self._hooks[0](unraisable)
        elif issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._end(self.number)

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        if self.number is None:
            self._hooks[1](args)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    set_handlers(signal.SIG_DFL)
    _let()


def _terminal() -> Callable[[], bytes]:
    """A function that restores the terminal as it is now, and gives the bytes to write first: a
    password prompt may have turned the echo off, and the cursor may be hidden."""
    try:
        import termios
    except ImportError:
        return lambda: b""
    found = next((n for n in (0, 1, 2) if os.isatty(n)), None)
    if found is None:
        return lambda: b""
    at = found
    try:
        before = termios.tcgetattr(at)
    except termios.error:
        return lambda: b""

    def restore() -> bytes:
        try:
            if os.tcgetpgrp(at) == os.getpgrp():  # else another group has it
                termios.tcsetattr(at, termios.TCSANOW, before)
        except (OSError, termios.error):  # it has gone
            pass
        return b"\r\x1b[K\x1b[?25h" if os.isatty(2) else b""

    return restore
