"""The record layer below msgpack on TCP: nobody can change, drop or add a byte unnoticed.

wire.py describes the format. Each end has one Sealer and one Opener.
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
    """The bytes of `pieces` cut into payloads, all full but the last. Nothing is copied."""
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
    """Makes the records to send."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)

    def seal(self, pieces: Sequence[Buffer]) -> Iterator[bytes]:
        """The records that hold `pieces`. All must be sent, in this order."""
        for payload in _payloads(pieces):
            length = sum(map(len, payload)).to_bytes(4, "big")
            yield b"".join((length, self._tags.next(length, payload), *payload))


class Opener:
    """Checks the tags of arriving records and gives their payloads.

    The caller puts bytes of the stream into `room()`, and says by `took` how many.
    """

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._buffer = memoryview(bytearray(4 * (HEAD_BYTES + MAX_RECORD)))
        self._begin = self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go, at least one. Call it when `next` gives b""."""
        if self._begin > 0:
            left = bytes(self._buffer[self._begin : self._end])
            self._buffer[: len(left)] = left
            self._begin, self._end = 0, len(left)
        return self._buffer[self._end :]

    def took(self, size: int) -> None:
        self._end += size

    def next(self) -> bytes:
        """The next record's payload; b"" if the record is incomplete. Raises ProtocolError."""
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
