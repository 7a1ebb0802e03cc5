"""Buffers become one-dimensional: an index is an offset in elements."""

from __future__ import annotations

from typing import Any

from ..errors import LowerError
from ..ir import (
    Block,
    Buffer,
    Dim,
    Expr,
    Load,
    PrimFunc,
    Store,
    const,
    expr,
    load,
    rebuild,
    with_fields,
)

MOST_ELEMENTS = 1 << 31


def flatten_buffers(func: PrimFunc) -> PrimFunc:
    """B[i, j]   =>   B[i*m + j], row-major or by the buffer's own strides.

    Raises LowerError for a buffer of 2^31 elements or more, whose offsets int32 cannot hold.
    """
    flat: dict[Buffer, Buffer] = {}

    def one(buffer: Buffer) -> Buffer:
        if buffer not in flat:
            size: Dim = 1
            for extent in buffer.shape:
                size = extent * size
            if isinstance(size, int) and size >= MOST_ELEMENTS:
                raise LowerError(
                    f"buffer '{buffer.name}' has {size} elements, 2^31 or more",
                    where=func.name,
                    mend="split the tensor",
                )
            flat[buffer] = buffer.replace(shape=(size,), strides=None)
        return flat[buffer]

    def offset(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        total: Expr = const(0)
        for index, stride in zip(indices, strides_of(buffer), strict=True):
            total = total + index * expr(stride)
        return total

    def visit(m: Any) -> Any:
        match m:
            case Load(buffer, indices):
                inner = tuple(visit(i) for i in indices)
                return load(one(buffer), (offset(buffer, inner),))
            case Store(buffer, indices, value):
                inner = tuple(visit(i) for i in indices)
                return Store(one(buffer), (offset(buffer, inner),), visit(value))
            case Block():
                inside = visit(m.body)
                return with_fields(m, body=inside, allocs=tuple(one(b) for b in m.allocs))
        return rebuild(m, visit)

    body = visit(func.body)
    params = tuple(one(p) if isinstance(p, Buffer) else p for p in func.params)
    return with_fields(func, params=params, body=body)


def strides_of(buffer: Buffer) -> tuple[Dim, ...]:
    """In elements; row-major where the buffer names none."""
    if buffer.strides is not None:
        return buffer.strides
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(buffer.shape):
        strides.append(step)
        step = extent * step
    return tuple(reversed(strides))
