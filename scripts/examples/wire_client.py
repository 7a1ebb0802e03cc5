"""python wire_client.py HOST PORT KEYFILE: msgpack and a socket drive a board (mlc_rpc/wire.py)."""

import hashlib
import os
import socket
import sys
from typing import Any

import msgpack

if len(sys.argv) != 4:
    sys.exit(__doc__)
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).makefile("rwb")
key, nonce, answers = open(sys.argv[3], "rb").read(), os.urandom(32), msgpack.Unpacker()
ways: list[list[Any]] = []  # [key, number of the next record]: to the board, from the board


def mac(secret: bytes, *data: bytes) -> bytes:
    return hashlib.blake2b(b"".join(data), key=secret, digest_size=32).digest()


def head(way: list[Any], payload: bytes) -> bytes:
    length, way[1] = len(payload).to_bytes(4, "big"), way[1] + 1
    return length + mac(way[0], (way[1] - 1).to_bytes(8, "big"), length, payload)[:16]


def call(method: str, *params: object) -> Any:
    data = msgpack.packb([0, 1, method, params])
    stream.write(head(ways[0], data) + data if ways else data)
    stream.flush()
    while not (ready := list(answers)):
        seal = stream.read(20) if ways else b""
        data = stream.read(int.from_bytes(seal[:4], "big")) if ways else stream.read1(4096)
        assert not ways or seal == head(ways[1], data), "this is not from the board"
        answers.feed(data)
    assert ready[0][2] is None, ready[0][2]
    return ready[0][3]


assert stream.read(16) == b"\0mlc-runtime\0\r\n\0"
major, minor, theirs = call("hello", 1, 0, nonce)
hellos = b"".join(n.to_bytes(4, "big") for n in (1, 0, major, minor)) + nonce + theirs
names = (b"client proves", b"board proves", b"client sends", b"board sends")
mine, its, sends, hears = (mac(key, name.ljust(16, b"\0"), hellos) for name in names)
assert call("auth", mine) == its, "what answers here has another key"
ways += [[sends, 0], [hears, 0]]
tensor = call("tensor.new", "uint8", [5])
call("tensor.write", tensor, 0, b"hello")
print(call("describe")["machine"], call("tensor.read", tensor, 0, 5))
