"""Tensor intrinsics, declared by a tensor expression of what they compute.

    def gemv(m, l):
        a, b = te.placeholder((l,), name="a"), te.placeholder((m, l), name="b")
        k = te.reduce_axis((0, l), "k")
        c = te.compute((m,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
        rows = te.decl_buffer(b.shape, b.dtype, strides=[te.var("s"), 1])

        def body(ins, outs):
            ...  # a statement; or three: of the whole, of setting to 0, of adding to

        return te.decl_tensor_intrin(c.op, body, binds={b: rows})

This file has the declaration; `schedule.stages` makes a tensor intrinsic of it for a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir import (
    Broadcast,
    Buffer,
    Call,
    Const,
    Dim,
    Evaluate,
    Expr,
    ExprLike,
    Ramp,
    Shuffle,
    Stmt,
    Store,
    const,
    dtype_of,
    expr,
    load,
    seq,
    with_lanes,
)
from .tensor import ComputeOp, Operation, Tensor

Features = Mapping[str, frozenset[str]]


@dataclass(frozen=True, eq=False)
class DeclaredIntrin:
    """The arguments of te.decl_tensor_intrin. binds: strides of tensors whose rows lie anywhere."""

    name: str
    op: ComputeOp
    function: Callable[[Sequence[View], Sequence[View]], Any]
    binds: Mapping[Tensor, Buffer] = field(default_factory=dict)
    features: Features | None = None


Intrinsic = str | DeclaredIntrin | Callable[[], "DeclaredIntrin"]


def decl_tensor_intrin(
    op: Operation,
    fcompute: Callable[[Sequence[View], Sequence[View]], Any],
    name: str = "tensor_intrin",
    binds: Mapping[Tensor, Buffer] | None = None,
    default_buffer_params: Mapping[str, Any] | None = None,
    features: Mapping[str, Sequence[str]] | None = None,
) -> DeclaredIntrin:
    """Declares the statements of an operation of small shape.

    fcompute(ins, outs) gives a statement, or three: the whole operation, the reset of the result to
    the reduction's identity, and the update that adds to it. binds: buffers of te.decl_buffer for
    tensors; rows may lie anywhere where strides are variables. features: per machine ("aarch64",
    "arm"), the CPU features that it needs, by LLVM's names (default: those of the called
    instructions). Raises TypeError for an operation of another kind.
    """
    if not isinstance(op, ComputeOp) or len(op.body) != 1:
        raise TypeError(
            f"decl_tensor_intrin of {op!r}\n  try: the op of a tensor of te.compute: C.op"
        )
    unknown = sorted(set(default_buffer_params or {}) - {"offset_factor", "data_alignment"})
    if unknown:
        raise TypeError(
            f"decl_tensor_intrin: default_buffer_params has '{unknown[0]}'\n"
            "  try: binds= with te.decl_buffer for tensors whose rows lie apart"
        )
    asked = None if features is None else {m: frozenset(f) for m, f in features.items()}
    return DeclaredIntrin(name, op, fcompute, dict(binds or {}), asked)


def decl_buffer(
    shape: Sequence[Dim],
    dtype: str = "float32",
    name: str = "buffer",
    *,
    strides: Sequence[Dim] | None = None,
    offset_factor: int = 1,
    data_alignment: int = 64,
) -> Buffer:
    """A tensor in memory for an intrinsic's `binds`. Its strides, in elements, are numbers, or
    variables for rows that may lie anywhere. offset_factor and data_alignment have no effect."""
    return Buffer(name, tuple(shape), dtype, None if strides is None else tuple(strides))


class View:
    """A tensor inside of an intrinsic: vectors of its rows are loaded and stored."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.buffer.shape

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        return self.buffer[indices]

    def vload(self, begin: ExprLike | Sequence[ExprLike], dtype: str = "") -> Expr:
        """A vector of `dtype`, as "int8x8", from an element on, along the last dimension."""
        lanes = dtype_of(dtype or self.dtype).lanes
        return load(self.buffer, self._at(begin, lanes))

    def vstore(self, begin: ExprLike | Sequence[ExprLike], value: ExprLike) -> Stmt:
        """Stores a value, or a vector, from an element on."""
        stored = expr(value, self.dtype)
        return Store(self.buffer, self._at(begin, dtype_of(stored.dtype).lanes), stored)

    def access_ptr(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "access_ptr: generated code calls no function of C by a pointer\n"
            "  try: vload and vstore, and te.call_llvm_pure_intrin for instructions"
        )

    def _at(self, begin: ExprLike | Sequence[ExprLike], lanes: int) -> tuple[Expr, ...]:
        given = list(begin) if isinstance(begin, Sequence) else [begin]
        if len(given) == 1:  # an element by its number, as of one dimension
            given = [0] * (self.buffer.ndim - 1) + given
        indices = [expr(i) for i in given]
        if lanes > 1:
            last = indices[-1]
            indices[-1] = Ramp(last, const(1), lanes, with_lanes("int32", lanes))
        return tuple(indices)


def vector_const(value: float, dtype: str) -> Expr:
    """A number of a dtype; with lanes, in each: const(0, "int32x4")."""
    kind = dtype_of(dtype)
    one = const(value, kind.scalar)
    return one if kind.lanes == 1 else Broadcast(one, kind.lanes, dtype)


def vectorlow(dtype: str, vector: Expr) -> Expr:
    """The first half of a vector."""
    return Shuffle((vector,), tuple(range(dtype_of(dtype).lanes)), dtype)


def vectorhigh(dtype: str, vector: Expr) -> Expr:
    """The second half of a vector."""
    half = dtype_of(dtype).lanes
    return Shuffle((vector,), tuple(range(half, 2 * half)), dtype)


def call_llvm_pure_intrin(dtype: str, name: str, *args: ExprLike) -> Expr:
    """A call of an LLVM intrinsic, by its whole name or without the types at its end. TVM's first
    argument, a uint32 that counts the arguments in the name's types, is left out."""
    given = [expr(a) for a in args]
    if given and isinstance(given[0], Const) and given[0].dtype == "uint32":
        del given[0]
    return Call(name, tuple(given), dtype)


class IRBuilder:
    """Collects statements: ib.emit(statement), ib.get()."""

    def __init__(self) -> None:
        self._stmts: list[Stmt] = []

    def emit(self, stmt: Stmt | Expr) -> None:
        if not isinstance(stmt, (Stmt, Expr)):
            raise TypeError(f"emit: {stmt!r} is not a statement\n  try: outs[0].vstore(0, value)")
        self._stmts.append(stmt if isinstance(stmt, Stmt) else Evaluate(stmt))

    def get(self) -> Stmt:
        return seq(self._stmts)


class ir_builder:
    """`te.ir_builder.create()`: where the statements of an intrinsic are collected."""

    create = IRBuilder
