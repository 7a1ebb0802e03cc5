"""Kinds: what a value on the wire may be, and how to read it.

    Map({"count": Uint(1, 64), "names": Many(Text(32), 0, 8)})

A kind checks types, ranges and lengths before it makes a value of the bytes, so an answer takes no
more memory than was asked for. No kind accepts msgpack's extension type. wire.py has the kind of
each method's answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlc_rpc.source import (
    BOOL,
    BYTES,
    EXTENSION,
    FLOAT,
    INTEGER,
    LIST,
    MAP,
    MAX_DEPTH,
    MAX_MESSAGE,
    NIL,
    NOTHING,
    TEXT,
    Source,
    described,
)
from mlc_targets.text import shown

MAX_UINT = (1 << 64) - 1
MAX_FIELDS = 64  # of a map
MAX_KEY = 64  # bytes
PIECE_BYTES = 1 << 16  # skipped at a time


class Wrong(Exception):
    """The answer has a wrong value at `place`."""

    def __init__(self, what: str, place: str = "") -> None:
        self.what, self.place = what, place
        super().__init__(f"{place} of the answer {what}" if place else f"the answer {what}")

    def within(self, outer: str) -> Wrong:
        """The same error, with `outer` before its place."""
        dot = "." if self.place and self.place[0] != "[" else ""
        return Wrong(self.what, f"{outer}{dot}{self.place}")


class Kind(ABC):
    """`str` describes the values of this kind."""

    __slots__ = ()

    def read(self, source: Source) -> Any:
        """The next value. Raises Wrong for a value of another kind, and what the source raises."""
        return self.take(source, *source.head())

    @abstractmethod
    def take(self, source: Source, family: str, value: Any) -> Any:
        """The value whose head, `family` and `value`, was just read."""

    def refusal(self, family: str, value: Any) -> Wrong:
        return Wrong(f"is {described(family, value)}, where {self} belongs")


@dataclass(frozen=True, slots=True)
class Nil(Kind):
    def take(self, source: Source, family: str, value: Any) -> None:
        if family is not NIL:
            raise self.refusal(family, value)

    def __str__(self) -> str:
        return "nil"


@dataclass(frozen=True, slots=True)
class Bool(Kind):
    def take(self, source: Source, family: str, value: Any) -> bool:
        if family is not BOOL:
            raise self.refusal(family, value)
        return bool(value)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Uint(Kind):
    """An integer from `least` to `most`."""

    least: int = 0
    most: int = MAX_UINT

    def take(self, source: Source, family: str, value: Any) -> int:
        if family is not INTEGER or not self.least <= value <= self.most:
            raise self.refusal(family, value)
        return int(value)

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        return f"an integer from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Real(Kind):
    """A number from `least` to `most`; so neither NaN nor infinite."""

    least: float
    most: float

    def take(self, source: Source, family: str, value: Any) -> float:
        if family not in (FLOAT, INTEGER) or not self.least <= value <= self.most:
            raise self.refusal(family, value)
        return float(value)

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """UTF-8 of at most `most` bytes. Characters that are not printable are escaped."""

    most: int

    def take(self, source: Source, family: str, value: Any) -> str:
        if family is not TEXT or value > self.most:
            raise self.refusal(family, value)
        return shown(str(source.take(value), "utf-8", "replace"), self.most)

    def __str__(self) -> str:
        return f"text of at most {self.most} bytes"


@dataclass(frozen=True, slots=True)
class Word(Kind):
    """One of these words."""

    words: tuple[str, ...]

    def take(self, source: Source, family: str, value: Any) -> str:
        if family is not TEXT or value > max(map(len, self.words)):
            raise self.refusal(family, value)
        text = str(source.take(value), "utf-8", "replace")
        if text not in self.words:
            raise Wrong(f"is '{shown(text)}', where {self} belongs")
        return text

    def __str__(self) -> str:
        return " or ".join(self.words)


@dataclass(frozen=True, slots=True)
class Data(Kind):
    """`least` to `most` bytes; exactly `least` without a `most`. With `into`, they are written
    there and the value is None."""

    least: int
    most: int | None = None
    into: memoryview | None = None

    def take(self, source: Source, family: str, value: Any) -> bytes | bytearray | None:
        if family is not BYTES or not _counts(self.least, value, self.most):
            raise self.refusal(family, value)
        if self.into is None:
            return source.take(value)
        source.fill(self.into)
        return None

    def __str__(self) -> str:
        return f"{_count(self.least, self.most)} bytes"


@dataclass(frozen=True, slots=True)
class Many(Kind):
    """A list of `least` to `most` elements of a kind; exactly `least` without a `most`."""

    of: Kind
    least: int
    most: int | None = None

    def take(self, source: Source, family: str, value: Any) -> list[Any]:
        if family is not LIST or not _counts(self.least, value, self.most):
            raise self.refusal(family, value)
        found: list[Any] = []
        try:
            for _ in range(value):
                found.append(self.of.read(source))
        except Wrong as error:
            raise error.within(f"[{len(found)}]") from None
        return found

    def __str__(self) -> str:
        return f"a list of {_count(self.least, self.most)}"


@dataclass(frozen=True, slots=True)
class Row(Kind):
    """A list of one value of each of these kinds."""

    of: tuple[Kind, ...]

    def take(self, source: Source, family: str, value: Any) -> list[Any]:
        if family is not LIST or value != len(self.of):
            raise self.refusal(family, value)
        found: list[Any] = []
        try:
            for each in self.of:
                found.append(each.read(source))
        except Wrong as error:
            raise error.within(f"[{len(found)}]") from None
        return found

    def __str__(self) -> str:
        return f"a list of {len(self.of)}"


KEY = Text(MAX_KEY)


@dataclass(frozen=True, slots=True)
class Map(Kind):
    """Fields by name. `without` has the default of each optional field. Fields of other names are
    skipped: another release may say more."""

    fields: Mapping[str, Kind]
    without: Mapping[str, Any] = field(default_factory=dict)

    def take(self, source: Source, family: str, value: Any) -> dict[str, Any]:
        if family is not MAP or value > MAX_FIELDS:
            raise self.refusal(family, value)
        found: dict[str, Any] = {}
        for _ in range(value):
            key = KEY.read(source)
            if key in found:
                raise Wrong("is there twice", key)
            try:
                found[key] = self.fields.get(key, ANYTHING).read(source)
            except Wrong as error:
                raise error.within(key) from None
        made = dict(self.without)
        for key in self.fields:
            if key in found:
                made[key] = found[key]
            elif key not in made:
                raise Wrong("is missing", key)
        return made

    def __str__(self) -> str:
        return f"a map of {', '.join(self.fields)}"


@dataclass(frozen=True, slots=True)
class Maybe(Kind):
    """A value of a kind; or nil, read as None."""

    of: Kind

    def take(self, source: Source, family: str, value: Any) -> Any:
        return None if family is NIL else self.of.take(source, family, value)

    def __str__(self) -> str:
        return f"nil or {self.of}"


@dataclass(frozen=True, slots=True)
class Anything(Kind):
    """Any value of at most `most` bytes. It is skipped and read as None."""

    most: int = MAX_MESSAGE

    def take(self, source: Source, family: str, value: Any) -> None:
        left, room = [0], self.most  # left: values to come in each open container
        while True:
            size = value if family in (TEXT, BYTES) else 0
            room -= 1 + size
            if family in (LIST, MAP):
                left.append(value if family is LIST else 2 * value)
            if family in (EXTENSION, NOTHING) or room < 0 or len(left) > MAX_DEPTH + 1:
                raise self.refusal(family, value)
            while size:
                size -= len(source.take(min(size, PIECE_BYTES)))
            while left and left[-1] == 0:
                left.pop()
            if not left:
                return
            left[-1] -= 1
            family, value = source.head()

    def __str__(self) -> str:
        return f"at most {self.most} bytes, {MAX_DEPTH} deep"


ANYTHING = Anything()


def _counts(least: int, count: int, most: int | None) -> bool:
    return least <= count <= (least if most is None else most)


def _count(least: int, most: int | None) -> str:
    return str(least) if most is None else f"{least} to {most}"
