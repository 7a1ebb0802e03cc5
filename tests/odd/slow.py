"""A slow way to a port: so many bits per second in each direction, so late, and at times frozen."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

BUFFER_BYTES = 4096  # of this program's sockets: what lies there counts as arrived
PIECE_BYTES = 1460


@dataclass
class Way:
    """`moved`: bytes that came through, to the board and from it."""

    port: int
    bits: float
    seconds: float
    moved: list[int] = field(default_factory=lambda: [0, 0])
    _flows: threading.Event = field(default_factory=threading.Event)

    def freeze(self, seconds: float) -> None:
        """Nothing moves for a while."""
        self._flows.clear()
        threading.Timer(seconds, self._flows.set).start()


@contextmanager
def slow(target: int, bits: float, seconds: float) -> Iterator[Way]:
    """A way to a port of this machine. seconds: until a byte is at the other end."""
    listening = _socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    way = Way(listening.getsockname()[1], bits, seconds)
    way._flows.set()
    ends: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                near = listening.accept()[0]
                far = _socket()
                far.connect(("127.0.0.1", target))
                ends.extend((near, far))
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for number, (source, sink) in enumerate(((near, far), (far, near))):
                    _carry(way, number, source, sink)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield way
    finally:
        way._flows.set()
        for end in (listening, *ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _socket() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    # Segments as a network has them: the loopback's own are larger than that buffer.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, PIECE_BYTES // 2)
    return made


def _carry(way: Way, number: int, source: socket.socket, sink: socket.socket) -> None:
    late: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def take() -> None:
        free = time.monotonic()  # when the line has sent all that came
        data = b"?"
        while data:
            try:
                data = source.recv(PIECE_BYTES)
            except OSError:
                data = b""
            way._flows.wait()
            free = max(free, time.monotonic()) + len(data) * 8 / way.bits
            late.put((free + way.seconds, data))
            time.sleep(max(free - time.monotonic(), 0))

    def give() -> None:
        with suppress(OSError):
            while True:
                when, data = late.get()
                time.sleep(max(when - time.monotonic(), 0))
                way._flows.wait()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
                way.moved[number] += len(data)

    for work in (take, give):
        threading.Thread(target=work, daemon=True).start()
