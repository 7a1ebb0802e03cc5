"""A runtime that listens on TCP, for tests; and a relay before it that can be cut."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

PATIENCE = 60.0
Change = Callable[[bytes], bytes]


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


class Listener:
    """`mlc-runtime --listen` on a free port of the loopback address. `log` is what it said."""

    def __init__(
        self, program: Path, *options: str, key: bytes | None = None, close_fds: bool = True
    ) -> None:
        self.key = secrets.token_bytes(32) if key is None else key
        self.process = subprocess.Popen(
            [program, "--listen", "0", "--key-stdin", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            close_fds=close_fds,
        )
        assert self.process.stdin and self.process.stderr
        self.process.stdin.write(self.key)
        self.process.stdin.close()
        first = self.process.stderr.readline().decode()
        found = re.fullmatch(r"mlc-runtime: listening on 127\.0\.0\.1:(\d+)\n", first)
        assert found, first
        self.port = int(found[1])
        self.log = first
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stderr
        self.process.stderr.close()
        assert self.key not in self.log.encode() and self.key.hex() not in self.log

    def wait_for(self, text: str) -> None:
        """Until the runtime has said so."""
        wait_until(lambda: text in self.log, f"it never said: {text}; but {self.log}")

    def wait_until_idle(self) -> None:
        """Until no session's process is left."""
        wait_until(lambda: not descendants(self.process.pid), "a session is left")

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.log += line.decode()


def wait_until(holds: Callable[[], bool], otherwise: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, otherwise
        time.sleep(0.01)


class Relay:
    """Passes bytes between one client and a port, until `cut`: then nothing, and no hang-up."""

    def __init__(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._target = port
        self._ends: list[socket.socket] = []
        self.cut = threading.Event()
        self.to_client: Change = bytes  # what arrives there of what was sent
        self.to_board: Change = bytes
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._server.accept()
            board = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [client, board]
            threading.Thread(target=self._pass, args=(client, board), daemon=True).start()
            self._pass(board, client)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.cut.is_set():
                    continue
                change = self.to_board if source is self._ends[0] else self.to_client
                sink.sendall(change(data))
            if not self.cut.is_set():
                sink.shutdown(socket.SHUT_WR)


def no_runtime(machine: str) -> bytes:
    raise AssertionError("a tcp:// board has its program")
