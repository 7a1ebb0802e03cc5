"""The record layer: what lies below msgpack on TCP, so that nobody changes, drops or adds a byte.

The wire is described in wire.py. One Sealer and one Opener at each end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from hmac import compare_digest

from mlc_rpc.errors import ProtocolError
from mlc_rpc.transport import Buffer
from mlc_rpc.wire import HASH_BYTES, MAX_RECORD, TAG_BYTES

HEAD_BYTES = 4 + TAG_BYTES


class _Tags:
    """The tags of one direction's records, in order."""

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=HASH_BYTES)
        self._number = 0

    def next(self, length: bytes, payload: Sequence[Buffer]) -> bytes:
        mac = self._keyed.copy()
        mac.update(self._number.to_bytes(8, "big") + length)
        for part in payload:
            mac.update(part)
        self._number += 1
        return mac.digest()[:TAG_BYTES]


def _payloads(pieces: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The bytes of `pieces`, cut for records: each but the last is full. Nothing is copied."""
    payload: list[Buffer] = []
    room = MAX_RECORD
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            payload.append(left[:room])
            room, left = room - len(left[:room]), left[room:]
            if room == 0:
                yield payload
                payload, room = [], MAX_RECORD
    if payload:
        yield payload


class Sealer:
    """Makes records of what is to be sent."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)

    def seal(self, pieces: Sequence[Buffer]) -> Iterator[bytes]:
        """The records that hold `pieces`; to be sent in this order, and all of them."""
        for payload in _payloads(pieces):
            length = sum(map(len, payload)).to_bytes(4, "big")
            yield b"".join((length, self._tags.next(length, payload), *payload))


class Opener:
    """Gives the payload of records that arrive, each after its tag was checked.

    Bytes of the stream are put into `room()`, and `took` says how many.
    """

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._buffer = memoryview(bytearray(4 * (HEAD_BYTES + MAX_RECORD)))
        self._begin = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go, at least one; asked for when `next` has no more."""
        if self._begin > 0:
            left = bytes(self._buffer[self._begin : self._end])
            self._buffer[: len(left)] = left
            self._begin, self._end = 0, len(left)
        return self._buffer[self._end :]

    def took(self, size: int) -> None:
        self._end += size

    def next(self) -> bytes:
        """The next record's payload; b"" when it has not arrived. Raises ProtocolError."""
        have = self._buffer[self._begin : self._end]
        if len(have) < HEAD_BYTES:
            return b""
        length = bytes(have[:4])
        size = int.from_bytes(length, "big")
        if not 0 < size <= MAX_RECORD:
            raise ProtocolError("a record from the board has no allowed length")
        if len(have) < HEAD_BYTES + size:
            return b""
        payload = bytes(have[HEAD_BYTES : HEAD_BYTES + size])
        if not compare_digest(self._tags.next(length, [payload]), have[4:HEAD_BYTES]):
            raise ProtocolError("a record is not as the board sent it")
        self._begin += HEAD_BYTES + size
        return payload
