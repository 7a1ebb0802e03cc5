"""Reads a stream as msgpack, piece by piece, so that a value's head can be checked before its
content is read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

Buffer = bytes | bytearray

MUCH = 1 << 14  # bytes that are worth a system call of their own
MAX_MESSAGE = 1 << 20  # bytes
MAX_DEPTH = 8  # nested containers

# Families of values, by a value's first byte.
NIL, BOOL, INTEGER, FLOAT = "nil", "bool", "integer", "float"
TEXT, BYTES, LIST, MAP = "text", "bytes", "list", "map"
EXTENSION, NOTHING = "extension", "nothing"


class Ended(Exception):
    """The stream ended."""


class Source:
    """A stream in order. more() waits for bytes and returns them, b"" at the end. into(place), if
    the stream has it, writes them to a place and returns how many."""

    def __init__(
        self,
        more: Callable[[], bytes],
        data: bytes = b"",
        into: Callable[[memoryview], int] | None = None,
    ) -> None:
        self._more, self._into = more, into
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that are here already."""
        return len(self._data) - self._at

    def byte(self) -> int:
        """Raises Ended, and what more() raises."""
        at = self._at
        if at == len(self._data):
            self._data, self._at = self._more(), 0
            at = 0
            if not self._data:
                raise Ended
        self._at = at + 1
        return self._data[at]

    def take(self, size: int) -> Buffer:
        """The next `size` bytes. Raises Ended, and what more() raises."""
        begin, end = self._at, self._at + size
        if end <= len(self._data):
            self._at = end
            return self._data[begin:end]
        whole = bytearray(size)
        self.fill(memoryview(whole))
        return whole

    def fill(self, place: memoryview) -> None:
        """Fills `place` with the next bytes. Raises as `take` does."""
        while place:
            if self.left == 0 and self._into and len(place) >= MUCH:
                size = self._into(place)
            else:
                if self.left == 0:
                    self._data, self._at = self._more(), 0
                size = min(len(place), self.left)
                place[:size] = memoryview(self._data)[self._at : self._at + size]
                self._at += size
            if size == 0:
                raise Ended
            place = place[size:]

    def head(self) -> tuple[str, Any]:
        """The next value's family, and the value itself or its length. After a length, the bytes or
        elements are still to be read."""
        at = self._at
        if at < len(self._data):
            self._at = at + 1
            family, form, value = _HEADS[self._data[at]]
        else:
            family, form, value = _HEADS[self.byte()]
        if form:
            (value,) = form.unpack(self.take(form.size))
        return family, value


def _heads() -> tuple[tuple[str, struct.Struct | None, Any], ...]:
    """For each first byte: the family, and either the format of what follows, or the value or
    length in the byte itself."""

    def fixed(family: str, values: range) -> list[tuple[str, struct.Struct | None, Any]]:
        return [(family, None, value) for value in values]

    def sized(family: str, formats: str) -> list[tuple[str, struct.Struct | None, Any]]:
        return [(family, struct.Struct(f">{form}"), None) for form in formats]

    return (
        *fixed(INTEGER, range(128)), *fixed(MAP, range(16)), *fixed(LIST, range(16)),
        *fixed(TEXT, range(32)), (NIL, None, None), (NOTHING, None, None), (BOOL, None, False),
        (BOOL, None, True), *sized(BYTES, "BHI"), *sized(EXTENSION, "BHI"), *sized(FLOAT, "fd"),
        *sized(INTEGER, "BHIQbhiq"), *fixed(EXTENSION, range(5)), *sized(TEXT, "BHI"),
        *sized(LIST, "HI"), *sized(MAP, "HI"), *fixed(INTEGER, range(-32, 0)),
    )  # fmt: skip


_HEADS = _heads()
assert len(_HEADS) == 256


def described(family: str, value: Any) -> str:
    """A head in words; never the content of text or bytes."""
    match family:
        case "bool":
            return "true" if value else "false"
        case "integer" | "float":
            return str(value)
        case "text":
            return f"text of {value} bytes"
        case "bytes":
            return f"{value} bytes"
        case "list" | "map":
            return f"a {family} of {value}"
        case "extension":
            return "a value of an extension type"
        case "nothing":
            return "not msgpack"
    return family
