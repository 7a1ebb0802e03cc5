"""Transposition in registers: the schedule in squares, what becomes of its loads and stores, and
that any transpose is right on any machine."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.ir import (
    Block,
    Buffer,
    Const,
    Expr,
    Load,
    PrimFunc,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    const,
    dtype_of,
    load,
    statements,
    walk,
)
from mlc_deploy.lower import lower
from mlc_deploy.lower.machine import bind_target
from mlc_deploy.lower.machine.transposes import transpose_loads, transposed
from mlc_deploy.ops.layout import pack
from tests.ops.operator_calls import Array, OperatorCall, array
from tests.ops.test_strategies import check
from tests.sessions import TARGETS, board_named

if TYPE_CHECKING:
    from mlc_rpc import Session

AARCH64 = mlc.Target("aarch64")
DTYPES = ("float32", "float32", "float16", "int8", "uint8", "int16", "int32", "float64")
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 31, 33)
LAYOUTS = ("NCHW", "NCHW4c", "NCHW8c", "NHWC", "NCHW2c")


def some(rng: Random, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Array:
    return (array(rng, shape) * 40).astype(np.int64).astype(rng.choice(dtypes))


def transpose(rng: Random) -> OperatorCall:
    shape = tuple(rng.choice(EXTENTS) for _ in range(rng.choice((2, 2, 3, 4))))
    axes = tuple(rng.sample(range(len(shape)), len(shape)))
    return OperatorCall("transpose", (some(rng, shape, (*DTYPES, "bool")),), {"axes": axes})


def layout_transform(rng: Random) -> OperatorCall:
    source, to = rng.sample(LAYOUTS, 2)
    channels = 8 * rng.choice((1, 2, 3)) if source != "NCHW" else rng.choice(EXTENTS)
    sizes = (rng.choice((1, 2)), channels, rng.choice(EXTENTS), rng.choice(EXTENTS))
    data = pack(some(rng, sizes, DTYPES), "NCHW", source)
    return OperatorCall("layout_transform", (data,), {"source": source, "to": to})


def drawn(batch: str) -> list[OperatorCall]:
    return [
        (transpose, layout_transform)[n % 2](Random(f"transposes {batch} {n}")) for n in range(16)
    ]


@pytest.mark.parametrize("batch", ["a", "b"])
def test_kernels(batch: str, local: Session) -> None:
    check(local, drawn(batch), TARGETS["local"])


@pytest.mark.parametrize("board", ["armv7", "armv7_scalar", "aarch64"])
def test_kernels_on_arm(board: str, request: pytest.FixtureRequest) -> None:
    check(board_named(request, board), drawn(board), TARGETS[board])


def lowered(call: OperatorCall) -> Stmt:
    func, _ = call.lowered(AARCH64, "main")
    return root_of(transpose_loads(bind_target(lower(func).body, AARCH64)))


def root_of(func: PrimFunc) -> Stmt:
    assert isinstance(func.body, Block)
    return func.body.body


def flat(body: Stmt) -> PrimFunc:
    """A function of these statements, for AArch64."""
    return bind_target(PrimFunc("flat", (), Block("root", (), (), (), body)), AARCH64)


def widths(body: Stmt) -> tuple[set[int], set[int]]:
    """How many elements are loaded, and stored, at once."""
    stores = [s for s in statements(body) if isinstance(s, Store)]
    loads = [n for s in stores for n in walk(s.value) if isinstance(n, Load)]
    return {len_of(n) for n in loads}, {len_of(s.value) for s in stores}


def len_of(value: Expr) -> int:
    return dtype_of(value.dtype).lanes


Found = tuple[tuple[str, tuple[int, ...], dict[str, Any]], int, int]
FOUND: dict[str, Found] = {  # call -> elements of a load, and of a store
    "a square of a matrix": (("transpose", (64, 32), {"axes": (1, 0)}), 4, 4),
    "planes to blocks": (
        ("layout_transform", (1, 8, 4, 8), {"source": "NCHW", "to": "NCHW4c"}), 4, 16,
    ),
    "blocks to planes": (
        ("layout_transform", (1, 2, 4, 8, 4), {"source": "NCHW4c", "to": "NCHW"}), 16, 4,
    ),
    "rows that stay whole": (("transpose", (4, 8, 16), {"axes": (1, 0, 2)}), 4, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_vectors_are_loaded_and_stored(name: str) -> None:
    (op, shape, attrs), loaded, stored = FOUND[name]
    body = lowered(OperatorCall(op, (np.zeros(shape, np.float32),), attrs))
    assert widths(body) == ({loaded}, {stored})


def test_blocks_that_become_larger_ones_are_copied_whole() -> None:
    """Fours of channels of int8, though there are more lanes in a vector."""
    attrs = {"source": "NCHW4c", "to": "NCHW8c"}
    data = np.zeros((1, 4, 6, 6, 4), np.int8)
    assert widths(lowered(OperatorCall("layout_transform", (data,), attrs))) == ({4}, {4})


def test_what_the_run_writes_is_left() -> None:
    """A square of a matrix, and beside it columns of a buffer that the same run writes."""
    matrix, out, work = (Buffer(n, (64,), "float32") for n in ("matrix", "out", "work"))

    def column(of: Buffer, first: int) -> Expr:
        index = Ramp(const(first), const(8), 4, "int32x4")
        return Load(of, (index,), "float32x4")

    def row(of: Buffer, first: int, value: Expr) -> Stmt:
        return Store(of, (Ramp(const(first), const(1), 4, "int32x4"),), value)

    copied = tuple(row(work, 32 + 4 * n, column(work, n)) for n in range(4))
    square = tuple(row(out, 4 * n, column(matrix, n)) for n in range(4))
    done = root_of(transpose_loads(flat(Seq((*copied, *square)))))
    assert isinstance(done, Seq) and done.stmts[:4] == copied
    assert len(done.stmts) == 5  # the square is one store


def test_what_is_no_whole_square_is_left() -> None:
    body = lowered(OperatorCall("transpose", (np.zeros((3, 64), np.float32),), {"axes": (1, 0)}))
    func = flat(body)
    assert transpose_loads(func) is func


@pytest.mark.parametrize("side", [2, 4, 8])
def test_transposed(side: int) -> None:
    """By numpy: a Shuffle takes lanes of its vectors, end to end."""
    matrix = np.arange(side * side).reshape(side, side)
    buffer = Buffer("A", (side * side,), "int32")
    rows = [
        load(buffer, (Ramp(const(n * side), const(1), side, f"int32x{side}"),)) for n in range(side)
    ]

    def value(e: Expr) -> Array:
        match e:
            case Load(_, (Ramp(Const(base)),)):
                return np.asarray(matrix[int(base) // side])
            case Shuffle(vectors, lanes):
                return np.concatenate([value(v) for v in vectors])[list(lanes)]
        raise AssertionError(e)

    assert np.array_equal([value(c) for c in transposed(rows)], matrix.T)
