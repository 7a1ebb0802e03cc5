"""The board's program as a child process; local:// and qemu:// use this.

Linux only, as the program is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from mlc_rpc.errors import Unreachable
from mlc_rpc.transport import Buffer, Runtime, Tail, Transport, join_words

PIPE_BYTES = 1 << 20
TURN_SECONDS = 0.2
GRACE_SECONDS = 2.0  # the program has this long to end after its input has


class ProcessTransport(Transport):
    """A child process, spoken to through its stdin and stdout. `close` removes `folder`."""

    ends_with_client = True

    def __init__(
        self, board: str, command: Sequence[str], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        """Raises Unreachable when the command cannot be started."""
        self.board = board
        self._folder = folder
        self._tail = Tail()
        self._closing = threading.Lock()
        self._closed = False
        try:
            # A session of its own: Ctrl-C reaches this process, which then ends the child in order.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            folder.cleanup()
            raise Unreachable(
                f"cannot start {command[0]}: {error.strerror}", board=board
            ) from error
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self.process = self._child.pid
        self.read_into = self._read_into
        self.ready = self._ready
        self._stdin = self._child.stdin.fileno()
        os.set_blocking(self._stdin, False)
        _widen(self._stdin)
        _widen(self._child.stdout.fileno())
        self._poll = select.poll()
        self._poll.register(self._stdin, select.POLLOUT)
        self._incoming = select.poll()
        self._incoming.register(self._child.stdout, select.POLLIN)
        self._listener = threading.Thread(target=self._listen, name=f"{board} stderr", daemon=True)
        self._listener.start()

    def read(self, limit: int) -> bytes:
        assert self._child.stdout
        if self._child.stdout.closed:  # another thread has seen the end
            return b""
        data = os.read(self._child.stdout.fileno(), limit)
        if not data:
            self._child.stdout.close()
        return data

    def _read_into(self, place: memoryview) -> int:
        assert self._child.stdout
        size = os.readv(self._child.stdout.fileno(), [place])
        if not size:
            self._child.stdout.close()
        return size

    def _ready(self, seconds: float) -> bool:
        return bool(self._incoming.poll(seconds * 1000))

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        left = list(pieces)
        while left:
            try:
                with self._closing:  # a closed descriptor may be another file's by now
                    if self._closed:
                        raise BrokenPipeError("it was closed")
                    written = os.writev(self._stdin, left)
            except BlockingIOError:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    raise TimeoutError from None
                # In short iterations: closing the descriptor does not end a poll of it.
                self._poll.poll(min(left_seconds, TURN_SECONDS) * 1000)
                continue
            self.moved += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = memoryview(left[0])[written:]

    def close(self) -> None:
        assert self._child.stdin
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._child.stdin.close()
        try:
            self._child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._listener.join(GRACE_SECONDS)
        self._folder.cleanup()

    def last_words(self) -> str:
        try:
            code = self._child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return join_words("it still runs, but closed its output", self._tail.text())
        self._listener.join(GRACE_SECONDS)
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return join_words(ending, self._tail.text())

    def _listen(self) -> None:
        assert self._child.stderr
        with self._child.stderr as stderr:
            while data := stderr.read(4096):
                self._tail.feed(data)


def runtime_file(runtime: Runtime, machine: str, folder: str) -> str:
    """Path of the board's program for `machine`; a program given as bytes goes into `folder`."""
    program = runtime(machine)
    if isinstance(program, Path):
        return str(program)
    path = Path(folder, f"mlc-runtime-{machine}")
    path.write_bytes(program)
    path.chmod(stat.S_IRWXU)
    return str(path)


def _widen(pipe: int) -> None:
    """Enlarges a pipe, for fewer system calls. The kernel may refuse; that does no harm."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
