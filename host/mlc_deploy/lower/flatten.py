"""Buffers become one-dimensional: an index is an offset in elements."""

from __future__ import annotations

from typing import Any

from ..arith import linear, to_expr
from ..errors import LowerError
from ..ir import (
    Block,
    Buffer,
    Expr,
    For,
    Load,
    PrimFunc,
    Ramp,
    Store,
    const,
    expr,
    free_vars,
    load,
    once,
    rebuild,
    with_fields,
    with_lanes,
)
from ..ir.build import span_of, strides_of
from ..ir.lanes import lane_by_lane
from ..passes.context import required

MOST_ELEMENTS = 1 << 31


@required
def flatten_buffers(func: PrimFunc) -> PrimFunc:
    """B[i, j]   =>   B[i*m + j], row-major or by the buffer's own strides; the indices of a vector
    become one Ramp.

    Raises LowerError for a buffer of 2^31 elements or more, whose offsets int32 cannot hold.
    """
    flat: dict[Buffer, Buffer] = {}

    def one(buffer: Buffer) -> Buffer:
        if buffer not in flat:
            size = span_of(buffer)
            if isinstance(size, int) and size >= MOST_ELEMENTS:
                raise LowerError(
                    f"buffer '{buffer.name}' has {size} elements, 2^31 or more",
                    where=func.name,
                    mend="split the tensor",
                )
            flat[buffer] = buffer.replace(shape=(size,), strides=None)
        return flat[buffer]

    def offset(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        scalar, lanes = lane_by_lane(indices)
        total: Expr = const(0)
        for index, stride in zip(scalar, strides_of(buffer), strict=True):
            total = total + index * expr(stride)
        return total if lanes is None else ramp(buffer, total, lanes)

    def ramp(buffer: Buffer, offset: Expr, lanes: For) -> Expr:
        count = int(lanes.extent)  # type: ignore[call-overload]
        form = linear(offset, {lanes.var: (0, count - 1)})
        step = form.terms.get(lanes.var, 0)
        base = to_expr(form.without(lanes.var), offset.dtype)
        if lanes.var in free_vars(base):
            raise LowerError(
                f"the lanes of an access to buffer '{buffer.name}' are not a constant step apart: "
                f"{offset}",
                where=func.name,
            )
        dtype = with_lanes(offset.dtype, count)
        return Ramp(base, const(step, offset.dtype), count, dtype)

    @once
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
