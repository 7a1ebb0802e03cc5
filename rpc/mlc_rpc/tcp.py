"""tcp://: a runtime that listens on a port (`mlc-runtime --listen`), for boards without ssh.

Both ends first prove that they hold the board's key. Everything after that is sealed in records
(wire.py): authentic, not secret.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from mlc_rpc.auth import Refusal, prove
from mlc_rpc.errors import RpcError, Unreachable
from mlc_rpc.keys import checked, key_path, read_key
from mlc_rpc.kinds import Maybe, Uint, Wrong
from mlc_rpc.record import Opener, Sealer
from mlc_rpc.sockets import unsent_bytes
from mlc_rpc.source import LIST, Ended, Source, described
from mlc_rpc.transport import Buffer, TcpUrl, Transport
from mlc_rpc.wire import ANSWERS, ERROR, MAX_GREETING, PREAMBLE, REQUEST, RESPONSE

SHOWN_BYTES = 40  # of a wrong preamble
UNSENT_BYTES = 1 << 18  # in the kernel's queue: on a slow link a ping waits for all of it


def open_tcp(url: TcpUrl, key: bytes | Path | None, timeout: float) -> Transport:
    """Connects and proves the key. None: the one enrolled for the URL's host.

    Raises Unreachable, Mismatch.
    """
    board = str(url)
    if isinstance(key, bytes):
        secret = checked(key, board)
    else:
        secret = read_key(key or key_path(url.host), board)
    connection = _connect(url, board, timeout)
    try:
        greeter = _Greeter(connection, board, time.monotonic() + timeout)
        greeter.skip_preamble()
        sealer, opener = prove(greeter.call, secret, board)
        return TcpTransport(board, connection, sealer, opener)
    except Ended:
        connection.close()
        raise _no_greeting(board, "it hung up") from None
    except Wrong as error:
        connection.close()
        raise _no_greeting(board, str(error)) from error
    except OSError as error:
        connection.close()
        raise _no_greeting(board, f"it broke off ({error or type(error).__name__})") from error
    except BaseException:
        connection.close()
        raise


class TcpTransport(Transport):
    """A connection after hello and auth: bytes in records."""

    greeted = True
    network = True

    def __init__(
        self, board: str, connection: socket.socket, sealer: Sealer, opener: Opener
    ) -> None:
        self.board = board
        self._socket = connection
        self._sealer = sealer
        self._opener = opener
        # Held while the descriptor is in use: if it were closed meanwhile, its number could
        # become another file's.
        self._reading, self._writing = threading.Lock(), threading.Lock()

    def read(self, limit: int) -> bytes:
        with self._reading:
            while not (payload := self._opener.next()):
                # The socket has one timeout for both directions, and writing sets it.
                with contextlib.suppress(TimeoutError):
                    size = self._socket.recv_into(self._opener.room())
                    if size == 0:
                        return b""
                    self._opener.took(size)
            return payload

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._writing:
            for record in self._sealer.seal(pieces):
                left = memoryview(record)
                while left:
                    self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                    sent = self._socket.send(left)
                    self.moved += sent
                    left = left[sent:]

    def unsent(self) -> int | None:
        return unsent_bytes(self._socket)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes a read and a write in progress
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._reading, self._writing:
            self._socket.close()

    def last_words(self) -> str:
        return ""


class _Greeter:
    """Requests before there is a session: one at a time, unsealed, under one deadline."""

    def __init__(self, connection: socket.socket, board: str, deadline: float) -> None:
        self._socket = connection
        self._board = board
        self._deadline = deadline
        self._source = Source(self._receive)
        self._id = 0

    def skip_preamble(self) -> None:
        for expected in PREAMBLE:
            if (byte := self._source.byte()) != expected:
                seen = bytes((byte, *self._source.take(min(self._source.left, SHOWN_BYTES))))
                raise _no_greeting(self._board, f"it sent {seen!r}")

    def call(self, method: str, *params: object) -> Any:
        """The result. Raises Refusal, Wrong, Ended, OSError."""
        self._id += 1
        self._settime()
        self._socket.sendall(msgpack.packb([REQUEST, self._id, method, list(params)]))
        begin = self._source.head()
        if begin != (LIST, 4):
            raise Wrong(f"is {described(*begin)}, where a response belongs")
        for number in (RESPONSE, self._id):
            Uint(number, number).read(self._source)
        if error := Maybe(ERROR).read(self._source):
            raise Refusal(*error[:2])
        result = ANSWERS[method](*params).read(self._source)
        if self._source.left:  # nothing may follow before the session begins
            raise Wrong("is followed by more")
        return result

    def _receive(self) -> bytes:
        self._settime()
        return self._socket.recv(MAX_GREETING)

    def _settime(self) -> None:
        self._socket.settimeout(max(self._deadline - time.monotonic(), 1e-3))


def _connect(url: TcpUrl, board: str, timeout: float) -> socket.socket:
    try:
        connection = socket.create_connection((url.host, url.port), timeout)
    except OSError as error:
        raise _not_connected(url, board, error, timeout) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return connection


def _not_connected(url: TcpUrl, board: str, error: OSError, timeout: float) -> RpcError:
    match error:
        case socket.gaierror():
            what, attempt = f"there is no host '{url.host}'", "its address in place of its name"
        case ConnectionRefusedError():
            what = f"nothing listens on port {url.port} of {url.host}"
            attempt = f"on the board: mlc-runtime --listen 0.0.0.0:{url.port} --key-file FILE"
        case TimeoutError():
            what = f"no answer from {url.host} in {timeout:g} s"
            attempt = f"ping {url.host}; is the board on, on this network, behind a firewall?"
        case _:
            what = f"cannot connect to {url.host} port {url.port}: {error.strerror or error}"
            attempt = f"ping {url.host}; is the board on, on this network?"
    return Unreachable(what, board=board, attempt=attempt)


def _no_greeting(board: str, what: str) -> RpcError:
    return Unreachable(
        f"what answers there is no mlc-runtime, or a busy one: {what}",
        board=board,
        attempt="look at what mlc-runtime says on the board",
    )
