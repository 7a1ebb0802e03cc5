"""Answers are read as what they are to be, and as nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from mlc_rpc import errors
from mlc_rpc.kinds import (
    ANYTHING,
    Bool,
    Data,
    Kind,
    Many,
    Map,
    Maybe,
    Nil,
    Real,
    Row,
    Text,
    Uint,
    Word,
    Wrong,
)
from mlc_rpc.session import Session
from mlc_rpc.source import Ended, Source
from tests.rpc.fake_board import OBJECT, FakeBoard

ROW = Row((Uint(0, 9), Text(3)))
MAP = Map({"a": Uint(), "b": Maybe(Bool())}, without={"b": None})


def read(kind: Kind, value: Any) -> Any:
    return kind.read(Source(lambda: b"", msgpack.packb(value)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Nil(), None), (Bool(), True), (Uint(), 2**64 - 1), (Uint(3, 3), 3), (Real(0, 1), 0.5),
        (Text(6), "größ"), (Word(("no", "yes")), "yes"), (Data(3), b"abc"), (Data(0, 5), b""),
        (Many(Uint(), 2), [1, 2]), (Many(Uint(), 0, 2), []), (ROW, [7, "abc"]), (Maybe(ROW), None),
        (MAP, {"a": 1, "b": True}),
    ],
)  # fmt: skip
def test_right_values(kind: Kind, value: Any) -> None:
    assert read(kind, value) == value


@pytest.mark.parametrize(
    ("kind", "value", "what"),
    [
        (Nil(), 0, "the answer is 0, where nil belongs"),
        (Bool(), 1, "the answer is 1, where true or false belongs"),
        (Uint(), True, f"the answer is true, where an integer from 0 to {2**64 - 1} belongs"),
        (Uint(1, 4), 5, "the answer is 5, where an integer from 1 to 4 belongs"),
        (Uint(3, 3), 2, "the answer is 2, where 3 belongs"),
        (Uint(0, 9), 1.0, "the answer is 1.0, where an integer from 0 to 9 belongs"),
        (Real(0, 1), float("nan"), "the answer is nan, where a number from 0 to 1 belongs"),
        (Real(0, 1e9), float("inf"), "the answer is inf, where a number from 0 to 1e+09 belongs"),
        (Real(0, 1), False, "the answer is false, where a number from 0 to 1 belongs"),
        (Text(3), "four", "the answer is text of 4 bytes, where text of at most 3 bytes belongs"),
        (Text(3), b"abc", "the answer is 3 bytes, where text of at most 3 bytes belongs"),
        (Word(("no", "yes")), "\x1b", r"the answer is '\x1b', where no or yes belongs"),
        (Data(3), b"ab", "the answer is 2 bytes, where 3 bytes belongs"),
        (Many(Uint(), 2), [1], "the answer is a list of 1, where a list of 2 belongs"),
        (Many(Uint(0, 1), 2), [1, 2],
         "[1] of the answer is 2, where an integer from 0 to 1 belongs"),
        (ROW, {}, "the answer is a map of 0, where a list of 2 belongs"),
        (MAP, {"b": True}, "a of the answer is missing"),
        (MAP, {"a": 1, "b": 2}, "b of the answer is 2, where true or false belongs"),
        (Map({"c": Many(MAP, 1)}), {"c": [{"a": 1, "b": "x"}]},
         "c[0].b of the answer is text of 1 bytes, where true or false belongs"),
        (MAP, {1: 2}, "the answer is 1, where text of at most 64 bytes belongs"),
        (Nil(), msgpack.Timestamp(1),
         "the answer is a value of an extension type, where nil belongs"),
        (ANYTHING, [[[[[[[[[[]]]]]]]]]],
         "the answer is a list of 1, where at most 1048576 bytes, 8 deep belongs"),
        (ANYTHING, [msgpack.ExtType(1, b"")],
         "the answer is a value of an extension type, where at most 1048576 bytes, 8 deep belongs"),
    ],
)  # fmt: skip
def test_wrong_values_are_told_by_their_place(kind: Kind, value: Any, what: str) -> None:
    with pytest.raises(Wrong) as caught:
        read(kind, value)
    assert str(caught.value) == what


def test_fields_of_another_release_are_passed_over() -> None:
    more = {"new": [{"x": [1, b"y" * 100_000]}, None], "a": 1}
    assert read(MAP, more) == {"a": 1, "b": None}
    twice = b"\x82" + 2 * (msgpack.packb("a") + b"\x01")
    with pytest.raises(Wrong, match="a of the answer is there twice"):
        MAP.read(Source(lambda: b"", twice))


def test_text_arrives_escaped() -> None:
    assert read(Text(20), "a\x1b[1m\n") == r"a\x1b[1m\n"
    assert Text(3).read(Source(lambda: b"", b"\xa2\xff\xfe")) == "��"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
def test_a_stream_may_come_in_any_pieces(piece: int) -> None:
    data = msgpack.packb([5, "abc"]) + msgpack.packb({"a": 2**40, "b": False})
    parts = [data[at : at + piece] for at in range(0, len(data), piece)]
    source = Source(lambda: parts.pop(0) if parts else b"")
    assert ROW.read(source) == [5, "abc"]
    assert MAP.read(source) == {"a": 2**40, "b": False}
    with pytest.raises(Ended):
        ROW.read(source)


def test_bytes_are_put_where_they_belong() -> None:
    whole = np.random.default_rng(0).bytes(100_000)
    packed = msgpack.packb(whole) + b"\xc0"
    left = [packed[20:50_000], packed[50_000:]]
    place = np.zeros(100_000, np.uint8)

    def into(target: memoryview) -> int:
        part = left.pop(0)
        size = min(len(part), len(target))
        target[:size] = part[:size]
        left[:0] = [part[size:]] if size < len(part) else []
        return size

    source = Source(lambda: left.pop(0), packed[:20], into)
    assert Data(100_000, into=place.data).read(source) is None
    assert place.tobytes() == whole
    assert Nil().read(source) is None


# ---- Lies that are of the right kind ----


def lie(method: str, answer: Callable[..., Any], work: Callable[[Session], object]) -> str:
    """The error of work with a board that answers a method so; the session is over."""
    board = FakeBoard({method: answer})
    with Session(board.transport) as session:
        with pytest.raises(errors.ProtocolError) as caught:
            work(session)
        assert caught.value.method == method
        assert caught.value.attempt == "use the client and the board's program of the same release"
        with pytest.raises(errors.ProtocolError):
            session.ping()
    return caught.value.what


LOADED = {"module": 7, "arena": 9, "image_bytes": 4096, "metadata": b""}


@pytest.mark.parametrize(
    ("method", "answer", "work", "what"),
    [
        ("tensor.new", lambda *_: 5, lambda s: [s.empty((1,)) for _ in range(2)],
         "tensor 5 is another one already"),
        ("blob.has", lambda *_: [1 << 40, True], lambda s: s.put(b"abc"),
         "the board has 1099511627776 bytes of a blob of 3"),
        ("blob.has", lambda *_: [2, True], lambda s: s.put(b"abc"),
         "the board has 2 bytes of a blob of 3"),
        ("blob.get", lambda _, at, size: bytes(size), lambda s: s.get(s.put(b"abc")),
         "what came is not the blob's content"),
        ("tensor.read", lambda *_: b"abc", lambda s: s.empty((1,)).numpy(),
         "the answer is 3 bytes, where 4 bytes belongs"),
        ("blob.put", lambda *_: 2, lambda s: s.put(b"abc"), "the answer is 2, where 3 belongs"),
        ("module.load", lambda *_: LOADED, lambda s: s.load(OBJECT),
         "metadata of the answer is not the object's"),
        ("module.load", lambda *_: LOADED, lambda s: s.load(b"no object"),
         "metadata of the answer is not the object's"),
        ("run", lambda *_: {"nanoseconds": [1, 2]},
         lambda s: s.load(OBJECT).profile({"x": np.zeros(4, np.float32)}),
         "nanoseconds of the answer is a list of 2, where a list of 1 belongs"),
        ("time", lambda *_: {"samples": [0.1], "number": [1]},
         lambda s: s.load(OBJECT).time({"x": np.zeros(4, np.float32)}, number=2, repeat=1),
         "number[0] of the answer is 1, where an integer from 2 to 4294967295 belongs"),
        ("time", lambda *_: {"samples": [0.1], "number": [1], "facts": ["core"], "each": 1,
                             "before": [[1]], "after": [[1, 2]], "cores": [0]},
         lambda s: s.load(OBJECT).time({"x": np.zeros(4, np.float32)}, number=1, repeat=1),
         "after[0] of the answer is a list of 2, where one of 1, as facts, belongs"),
    ],
)  # fmt: skip
def test_lies(
    method: str, answer: Callable[..., Any], work: Callable[[Session], object], what: str
) -> None:
    assert lie(method, answer, work) == what
