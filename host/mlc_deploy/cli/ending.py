"""How the process `mlc-deploy` ends: of itself, or by a signal at any moment.

SIGINT (Ctrl-C), SIGTERM and SIGHUP end it where it stands, with 128 + their number. No exception
runs through code that could swallow it or be half way through something. Every process that this
one started is ended, also those of libraries, and every temporary file is removed. A command that
has something to say first asks for a KeyboardInterrupt instead (`orderly`).

What is imported here by name is imported before a signal can be caught, so it is little.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import NoReturn

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has all of them
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
PATIENCE_SECONDS = 10.0  # from a KeyboardInterrupt to the end, in order or not
ONE_PRESS_SECONDS = 0.1  # in which a signal may come twice: to the group, and from a parent
TERM_SECONDS = 0.5  # for a process to end that was asked to
KILL_SECONDS = 5.0  # for one to end that was not asked

_ending: _Ending | None = None


def catch_signals() -> None:
    """From now on a signal ends this process, quietly. One that is ignored stays ignored, as it is
    under nohup."""
    _set_handlers(lambda number, _: _leave(number))


def end_with(job: Callable[[], int]) -> NoReturn:
    """Does the job, and ends this process with its status, or with that of a signal."""
    global _ending
    _ending = _Ending()
    _ending.watch()
    status = 1
    try:
        status = job()
    except BaseException:
        if _ending.number is None:
            sys.excepthook(*sys.exc_info())
    _ending.finish(status)


def orderly() -> AbstractContextManager[None]:
    """In this context the first signal raises KeyboardInterrupt. A second one ends the process at
    once, and so does PATIENCE_SECONDS."""
    from contextlib import nullcontext

    return _ending.orderly() if _ending else nullcontext()


def signalled() -> bool:
    """Whether a signal has ended the job: whatever was raised since is a consequence."""
    return _ending is not None and _ending.number is not None


def words_of(number: int) -> str:
    """What to tell of a signal."""
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def _set_handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _leave(number: int, before: bytes = b"") -> NoReturn:
    try:
        os.write(2, before + f"error: {words_of(number)}\n".encode())
    except OSError:  # there is no terminal any more
        pass
    os._exit(128 + number)


class _Ending:
    """What there is to be ended, and by which signal."""

    def __init__(self) -> None:
        import logging
        import secrets
        import socket
        import tempfile
        import threading
        import time
        from contextlib import suppress

        self.number: int | None = None  # of the signal that raised KeyboardInterrupt, or ended it
        self._since = 0.0  # when that was
        self._asked = self._raises = False
        self._one = threading.RLock()  # one thread ends the process; a handler may be in the middle
        self._clock, self._logging = time.monotonic, logging
        self._restore_terminal = _terminal()
        self._folder: str | None = None
        with suppress(OSError):  # where no folder can be written, commands that need none work
            name = f"mlc-deploy-{os.getpid()}-{secrets.token_hex(4)}"
            self._folder = os.path.join(tempfile.gettempdir(), name)
        # Its own bell: a handler waits for the main thread, which may be in C for long.
        self._bell, self._ringer = socket.socketpair()
        self._ringer.setblocking(False)

    def watch(self) -> None:
        """From now on a signal ends the process with all that belongs to it."""
        import tempfile
        import threading
        from contextlib import suppress

        _set_handlers(self._handle)
        signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._wait, name="signals", daemon=True).start()
        if hasattr(os, "register_at_fork"):  # a library's child: its signals are not for this one
            os.register_at_fork(before=_hold, after_in_parent=_let, after_in_child=_forget)
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._unraisable, self._thread_failed
        if self._folder is not None:
            with suppress(OSError):
                os.mkdir(self._folder, 0o700)
                tempfile.tempdir = os.environ["TMPDIR"] = self._folder

    def orderly(self) -> AbstractContextManager[None]:
        from contextlib import contextmanager

        @contextmanager
        def context() -> Iterator[None]:
            self._asked = self._raises = True
            try:
                yield
            finally:
                self._raises = False

        return context()

    def finish(self, status: int) -> NoReturn:
        """The end without a signal, or in order after one."""
        import atexit
        from contextlib import suppress

        self._raises = False
        if self.number is not None:
            if status != 128 + signal.SIGINT:  # which says that it has been told
                _say(f"error: {words_of(self.number)}\n".encode())
            status = 128 + self.number
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
                stream.flush()
        with self._one:
            try:
                self._clean()
            finally:
                os._exit(128 + self.number if self.number is not None else status)

    def _end(self, number: int) -> NoReturn:
        """The end by a signal, at once."""
        with self._one:
            try:
                self._note(number)
                self._clean()
            finally:
                _leave(number, self._restore_terminal())

    def _note(self, number: int) -> None:
        if self.number is None:
            self.number, self._since = number, self._clock()
        self._logging.disable()  # threads may complain of what ends

    def _clean(self) -> None:
        import shutil

        from ..unfinished import remove_unfinished
        from .descendants import end_descendants

        end_descendants(TERM_SECONDS, KILL_SECONDS)
        remove_unfinished()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._raises and self.number is None:
            self._note(number)
            raise KeyboardInterrupt
        if self._is_same_press():
            return
        self._end(number)

    def _is_same_press(self) -> bool:
        """Whether this signal follows one that raised KeyboardInterrupt so closely that it is the
        same one again."""
        return (
            self._asked
            and self.number is not None
            and self._clock() - self._since < ONE_PRESS_SECONDS
        )

    def _wait(self) -> None:
        """The thread that ends the process where the main thread does not come to it."""
        number = self._next_signal(None)
        assert number is not None
        if self._asked:
            began = self._clock()
            while (left := began + PATIENCE_SECONDS - self._clock()) > 0:
                if self._next_signal(left) and self._clock() - began >= ONE_PRESS_SECONDS:
                    break
        self._end(number)

    def _next_signal(self, seconds: float | None) -> int | None:
        """Waits for one of SIGNALS; None where none comes."""
        self._bell.settimeout(seconds)
        while True:
            try:
                number = self._bell.recv(1)[0]
            except TimeoutError:
                return None
            if number in SIGNALS:
                return number

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Where KeyboardInterrupt cannot be raised, in a finalizer say, it ends the process."""
        if self.number is None:
            self._hooks[0](unraisable)
        elif issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._end(self.number)

    def _thread_failed(self, args: object) -> None:
        if self.number is None:
            self._hooks[1](args)  # type: ignore[arg-type]


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    _set_handlers(signal.SIG_DFL)
    _let()


def _say(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:
        pass


def _terminal() -> Callable[[], bytes]:
    """What sets the terminal back to how it is now, and gives the bytes to write to it before
    anything else: somebody may be typing a password unseen, and the cursor may be hidden."""
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
            if os.tcgetpgrp(at) == os.getpgrp():  # else it is somebody else's at the moment
                termios.tcsetattr(at, termios.TCSANOW, before)
        except (OSError, termios.error):  # it has gone
            pass
        return b"\r\x1b[K\x1b[?25h" if os.isatty(2) else b""

    return restore
