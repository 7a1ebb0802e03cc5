"""A board in Python: enough of the wire to test the client, with faults on request.

A fault is a method's name and a function that answers in place of the board: it returns a result,
raises BoardError, or returns one of SILENCE, GARBAGE, DEATH.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgpack

from mlc_rpc.transport import Buffer, Transport
from mlc_rpc.wire import MAX_CHUNK, MAX_MESSAGE, METHODS, PREAMBLE, VERSION
from tests.runtime.elf_objects import Object, Section

SILENCE, GARBAGE, DEATH = object(), object(), object()
ITEM_BYTES = {"float32": 4, "int8": 1, "int64": 8, "float64": 8, "bool": 1, "bfloat16": 2}

METADATA = {
    "abi": 1,
    "target": "llvm",
    "machine": "x86_64",
    "features": [],
    "kernels": [
        {
            "name": "double",
            "params": [
                {"name": "x", "dtype": "float32", "shape": [4], "output": False},
                {"name": "y", "dtype": "float32", "shape": [4], "output": True},
            ],
            "scalars": [],
            "tasks": 1,
            "workspace": 0,
        }
    ],
    "model": {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [4]}],
        "arena": 64,
        "weights": 0,
        "weights_hash": b"",
        "calls": [[0, "first", [[2, 0, 0, 16], [3, 0, 0, 16]]]],
    },
}


ARENA = 1 << 20  # an id that no other tensor has
# An object that says so of itself, and holds nothing else.
OBJECT = Object(sections=(Section(".mlc", msgpack.packb(METADATA)),)).build()


class BoardError(Exception):
    """The three elements of an error response."""


class SocketTransport(Transport):
    """One end of a socket pair; `said` is what the board's stderr would hold."""

    board = "fake://"

    def __init__(self, end: socket.socket, said: str = "") -> None:
        self.end = end
        self.said = said

    def read(self, limit: int) -> bytes:
        return self.end.recv(limit)

    def write(self, pieces: Sequence[Buffer], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        left = memoryview(b"".join(pieces))
        while left:
            if not select.select([], [self.end], [], max(deadline - time.monotonic(), 0))[1]:
                raise TimeoutError
            left = left[self.end.send(left, socket.MSG_DONTWAIT) :]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)

    def last_words(self) -> str:
        return self.said


class FakeBoard:
    """Serves one client from a thread. `requests` has (method, params) of all that came."""

    def __init__(
        self,
        faults: dict[str, Callable[..., Any]] | None = None,
        banner: bytes = b"",
        preamble: bytes = PREAMBLE,
        said: str = "",
    ) -> None:
        ours, theirs = socket.socketpair()
        self.transport = SocketTransport(theirs, said)
        self.requests: list[tuple[str, list[Any]]] = []
        self.tensors: dict[int, bytearray] = {}
        self.blobs: dict[bytes, bytearray] = {}
        self.faults = faults or {}
        self._socket = ours
        self._first = banner + preamble
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def named(self, method: str) -> list[list[Any]]:
        """Parameters of all requests of one method."""
        return [params for name, params in self.requests if name == method]

    def _serve(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            self._socket.sendall(self._first)
            unpacker = msgpack.Unpacker(max_buffer_size=8 * MAX_MESSAGE)
            while data := self._socket.recv(1 << 20):
                unpacker.feed(data)
                for kind, number, method, params in unpacker:
                    assert kind == 0
                    self.requests.append((method, params))
                    try:
                        answer = self._answer(method, params)
                    except BoardError as error:
                        self._send([1, number, list(error.args), None])
                        continue
                    if answer is DEATH:
                        return
                    if answer is GARBAGE:
                        self._socket.sendall(b"\xc1 no message")
                    elif answer is not SILENCE:
                        self._send([1, number, None, answer])

    def _send(self, message: object) -> None:
        frame = msgpack.packb(message)
        assert len(frame) <= MAX_MESSAGE
        self._socket.sendall(frame)

    def _answer(self, method: str, params: list[Any]) -> Any:
        if method in self.faults:
            return self.faults[method](*params)
        if method not in {known.name for known in METHODS}:
            raise BoardError("protocol", f"no method '{method}'", {})
        match method, params:
            case "hello", [_, _, nonce]:
                assert len(nonce) == 32
                return [*VERSION, bytes(32)]
            case "describe", []:
                return {
                    "runtime": "0.1",
                    "machine": "aarch64",
                    "abi": 1,
                    "features": ["neon"],
                    "kernel": "6.1",
                    "cores": 4,
                    "fast_cores": 4,
                    "slow_cores": [],
                    "memory": 1 << 30,
                    "page_size": 4096,
                    "cpus": [{"model": "cortex-a72", "midr": 0x410FD083}],
                }
            case "heartbeat", [int()]:
                return None
            case "ping", [payload]:
                return payload
            case "tensor.new", [dtype, shape]:
                size = ITEM_BYTES[dtype]
                for extent in shape:
                    size *= extent
                self.tensors[len(self.requests)] = bytearray(size)
                return len(self.requests)
            case "tensor.write", [tensor, offset, data]:
                assert len(data) <= MAX_CHUNK
                assert offset + len(data) <= len(self.tensors[tensor])
                self.tensors[tensor][offset : offset + len(data)] = data
                return None
            case "tensor.read", [tensor, offset, size]:
                assert size <= MAX_CHUNK
                return bytes(self.tensors[tensor][offset : offset + size])
            case "tensor.fill", [tensor, _, _]:
                self.tensors[tensor][:] = bytes(len(self.tensors[tensor]))
                return None
            case "tensor.free", [tensor]:
                del self.tensors[tensor]
                return None
            case "blob.has", [name]:
                held = bytes(self.blobs.get(name, b""))
                return [len(held), blake2b(held, digest_size=32).digest() == name]
            case "blob.put", [name, total, offset, data]:
                return self._put(name, total, offset, data)
            case "blob.get", [name, offset, size]:
                return bytes(self.blobs[name][offset : offset + size])
            case "blob.free", [name]:
                self.blobs.pop(name, None)
                return None
            case "module.load", [_, _]:
                metadata = msgpack.packb(METADATA)
                return {"module": 7, "arena": ARENA, "image_bytes": 4096, "metadata": metadata}
            case "module.free", [_]:
                return None
            case "run", [_, _, args, _]:
                self.tensors[args[1]][:] = self.tensors[args[0]]
                return {"nanoseconds": [1500]}
            case "time", [_, _, _, options]:
                repeat = options["repeat"]
                return {"samples": [0.001] * repeat, "number": [options["number"]] * repeat}
        raise BoardError("protocol", f"wrong parameters for '{method}'", {})

    def _put(self, name: bytes, total: int, offset: int, data: bytes) -> int:
        held = self.blobs.setdefault(name, bytearray())
        if offset != len(held):
            raise BoardError("refused", f"blob has {len(held)} bytes, not {offset}", {})
        held += data
        if len(held) == total and blake2b(held, digest_size=32).digest() != name:
            del self.blobs[name]
            raise BoardError("refused", "blob's content has another hash", {})
        return len(held)
