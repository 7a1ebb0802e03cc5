"""Symbolic dimensions: the kernel checks the sizes that define them.

The runtime compares arguments with shapes of numbers and names, and passes the names' values. It
computes nothing. So a dimension such as `n - 2` gets its own name, and a strided tensor is passed
as the dense tensor around it. The kernel compares the sizes, and returns a status where they
differ.
"""

from __future__ import annotations

from itertools import pairwise

from ..arith import expr_bounds
from ..errors import LowerError
from ..ir import (
    MOST,
    Block,
    Buffer,
    Call,
    Const,
    Dim,
    Evaluate,
    Expr,
    For,
    If,
    PrimFunc,
    Stmt,
    Var,
    any_of,
    const,
    expr,
    is_const,
    replace_buffers,
    same_shape,
    seq,
    symbols_of,
    with_fields,
)
from ..ir.build import compare, is_root
from ..ir.names import names_of

BAD_SHAPE = 2  # the status of a kernel whose arguments have contradicting sizes


def bind_dimensions(func: PrimFunc) -> PrimFunc:
    """func(A[n - 2])   =>   func(A[d]): if d != n - 2: return 2
    func(A[n, m] with strides (s, 1))   =>   func(A[n, s]): if m > s: return 2

    A function with bounded integer parameters (MOST) stays as it is: its caller passes them. Raises
    LowerError for a dimension that no argument's size gives, and for strides that no part of a
    dense tensor has.
    """
    if MOST in func.attrs:
        return func
    names = names_of(func)
    wrong: list[Expr] = []
    moved: dict[Buffer, Buffer] = {}
    for buffer in func.buffers:
        shape: list[Dim] = []
        for size, pitch in zip(buffer.shape, _pitches(func, buffer), strict=True):
            if pitch is not size:
                wrong.append(compare(">", expr(size), expr(pitch)))
            named = pitch
            if isinstance(pitch, Expr) and not isinstance(pitch, Var):
                named = Var(names.fresh(f"{buffer.name}_dim{len(shape)}"), pitch.dtype)
                wrong.append(compare("!=", named, pitch))
            shape.append(named)
        if not same_shape(shape, buffer.shape) or buffer.strides is not None:
            moved[buffer] = buffer.replace(shape=tuple(shape), strides=None)
    params = tuple(moved.get(p, p) if isinstance(p, Buffer) else p for p in func.params)
    _require_told(func, params)
    if not moved:
        return func
    body = replace_buffers(func.body, moved)
    condition = any_of(*wrong)
    if not is_const(condition, False):
        refusal = If(condition, Evaluate(Call("ret", (const(BAD_SHAPE),), "int32")))
        body = _begun_by(refusal, body)
    return with_fields(func, params=params, body=body)


def _pitches(func: PrimFunc, buffer: Buffer) -> tuple[Dim, ...]:
    """The shape of the dense tensor around a buffer: the strides give all sizes but the first."""
    if buffer.strides is None:
        return buffer.shape
    steps = [expr(s) for s in buffer.strides]
    pitches = [_quotient(a, b) for a, b in pairwise(steps)]
    if not is_const(steps[-1], 1) or any(p is None for p in pitches):
        raise LowerError(
            f"strides {buffer.strides} of buffer '{buffer.name}' are not those of a part of a "
            "dense tensor",
            where=func.name,
            mend="each stride a multiple of the next, the last one 1",
        )
    known = tuple(int(p) if isinstance(p, Const) else p for p in pitches if p is not None)
    return (*buffer.shape[:1], *known)


def _quotient(a: Expr, b: Expr) -> Expr | None:
    """a // b where b divides a; None elsewhere."""
    if is_const(b, 1):
        return a
    rest = expr_bounds(a % b, {})
    return a // b if rest == (0, 0) else None


def _require_told(func: PrimFunc, params: tuple[Buffer | Var, ...]) -> None:
    sizes = [n for p in params if isinstance(p, Buffer) for n in p.shape]
    told = {n for n in (*sizes, *params) if isinstance(n, Var)}
    used = {v for b in func.buffers for v in symbols_of(b)}
    for v in sorted(used - told, key=lambda v: v.name):
        raise LowerError(
            f"no argument's size tells what '{v.name}' is",
            where=func.name,
            mend=f"an argument of which '{v.name}' by itself is a dimension",
        )


def _begun_by(first: Stmt, s: Stmt) -> Stmt:
    """s with a statement before it; a parallel loop takes it inside, and stays the whole body."""
    match s:
        case Block() if is_root(s):
            return with_fields(s, body=_begun_by(first, s.body))
        case For(kind="parallel"):
            return with_fields(s, body=seq((first, s.body)))
    return seq((first, s))
