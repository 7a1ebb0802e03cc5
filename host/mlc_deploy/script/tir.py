"""`T`: the words of the loop IR's script.

Words that make expressions (T.exp, T.max, T.float32 …) are functions like those of `te`. Only the
parser understands the other words: called outside of a decorated function they raise ScriptError.
mypy refuses calls as annotations (`A: T.Buffer(…)`) and accepts `a: T.handle` with
`A = T.match_buffer(a, …)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..ir import Broadcast as BroadcastNode
from ..ir import Cast as CastNode
from ..ir import Expr, ExprLike, address_of, call_extern, const, dtype_of, expr, with_lanes
from ..ir import Ramp as RampNode
from ..ir import Shuffle as ShuffleNode
from ..ir import cast as converted
from ..ir.build import number, promoted
from ..ir.nodes import Call
from ..te.intrinsics import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    expm1,
    floor,
    fma,
    fmod,
    gelu,
    log,
    log1p,
    nearbyint,
    pow,
    round,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    tan,
    tanh,
    trunc,
)  # fmt: skip
from ..te.tensor import max_value, min_value
from .function import decorated
from .operators import choose as Select
from .operators import choose_lazily as if_then_else
from .operators import likely, operate
from .source import misplaced
from .values import known_dtype

__all__ = [
    "abs", "address_of", "alloc_buffer", "axis", "block", "block_attr", "bool", "Broadcast",
    "Buffer", "call_extern", "call_intrin", "Cast", "cast", "ceil", "cos", "erf", "evaluate", "exp",
    "expm1", "float16", "float32", "float64", "floor", "floordiv", "floormod", "fma", "fmod",
    "func_attr", "gelu", "grid", "handle", "if_then_else", "init", "int16", "int32", "int64",
    "int8", "LetStmt", "likely", "log", "log1p", "match_buffer", "max", "max_value", "meta_var",
    "min", "min_value", "nearbyint", "parallel", "pow", "prim_func", "Ramp", "reads", "round",
    "rsqrt", "Select", "serial", "Shuffle", "sigmoid", "silu", "sin", "span", "sqrt", "tan", "tanh",
    "trunc", "truncdiv", "truncmod", "uint16", "uint32", "uint64", "uint8", "unroll", "unrolled",
    "var", "vectorized", "where", "writes",
]  # fmt: skip

Shape = Sequence[Any] | int
Notes = Mapping[str, Any] | None


def prim_func(function: Callable[..., Any] | None = None, *, private: Any = False) -> Any:
    """The PrimFunc that a Python function describes. Raises ScriptError, at line and column.

    `private` is TVM's and has no effect.
    """
    return partial(decorated, depth=1) if function is None else decorated(function)


_misplaced = partial(misplaced, "@T.prim_func")


# ------------------------------------------------------------------------------ types, parameters


class Buffer:
    """T.Buffer((16, 16), "float32"): a parameter's type; for mypy, the type of buffers."""

    def __init__(
        self,
        shape: Shape,
        dtype: str = "float32",
        *,
        strides: Sequence[Any] | None = None,
        scope: str = "global",
        align: int = 64,
    ) -> None: ...

    shape: tuple[Any, ...]
    dtype: str

    def __getitem__(self, indices: Any) -> Expr:
        raise _misplaced("a buffer's element")

    def __setitem__(self, indices: Any, value: Any) -> None:
        raise _misplaced("a buffer's element")


class handle:
    """A parameter's type: a buffer. T.match_buffer gives its shape."""


class Scalar(Expr):
    """A dtype: `n: T.int32` is a parameter, `n = T.int32()` a symbolic dimension, T.int8(3) a
    constant, T.float32(i) a conversion. A call gives an expression, so there are no instances.
    """

    dtype = ""

    def __new__(cls, value: ExprLike | str | None = None) -> Expr:  # type: ignore[misc]
        if value is None:
            raise _misplaced(f"T.{cls.dtype}() without a value")
        if isinstance(value, str):
            return const(float(value), cls.dtype)
        if isinstance(value, Expr):
            return converted(cls.dtype, value)
        return number(value, cls.dtype)  # type: ignore[arg-type]


class int8(Scalar):
    dtype = "int8"


class int16(Scalar):
    dtype = "int16"


class int32(Scalar):
    dtype = "int32"


class int64(Scalar):
    dtype = "int64"


class uint8(Scalar):
    dtype = "uint8"


class uint16(Scalar):
    dtype = "uint16"


class uint32(Scalar):
    dtype = "uint32"


class uint64(Scalar):
    dtype = "uint64"


class float16(Scalar):
    dtype = "float16"


class float32(Scalar):
    dtype = "float32"


class float64(Scalar):
    dtype = "float64"


class bool(Scalar):
    dtype = "bool"


def var(dtype: str = "int32") -> Expr:
    """A symbolic dimension: `n = T.var("int32")`."""
    raise _misplaced("T.var")


def match_buffer(
    param: type[handle] | handle,
    shape: Shape,
    dtype: str = "float32",
    *,
    strides: Sequence[Any] | None = None,
    scope: str = "global",
    align: int = 64,
) -> Buffer:
    """The buffer of a T.handle parameter."""
    raise _misplaced("T.match_buffer")


def alloc_buffer(
    shape: Shape,
    dtype: str = "float32",
    *,
    strides: Sequence[Any] | None = None,
    scope: str = "global",
    align: int = 64,
) -> Buffer:
    """A buffer of the function, or of the block around this line."""
    raise _misplaced("T.alloc_buffer")


def func_attr(attrs: Mapping[str, Any]) -> None:
    """Attributes of the function; "global_symbol" is its name."""
    raise _misplaced("T.func_attr")


# ------------------------------------------------------------------------------------------ loops


def grid(*extents: ExprLike) -> Iterator[Any]:
    """Serial loops around each other: `for i, j in T.grid(16, 16)`."""
    raise _misplaced("T.grid")


def _loop(word: str, doc: str) -> Callable[..., Iterator[Any]]:
    def loop(
        start: ExprLike,
        stop: ExprLike | None = None,
        *,
        annotations: Notes = None,
        dtype: str | None = None,
    ) -> Iterator[Any]:
        raise _misplaced(f"T.{word}")

    loop.__name__ = loop.__qualname__ = word
    loop.__doc__ = doc
    return loop


serial = _loop("serial", "A loop, as `range`.")
parallel = _loop("parallel", "A loop whose iterations may run at the same time.")
vectorized = _loop("vectorized", "A loop whose iterations are lanes of vectors.")
unroll = _loop("unroll", "A loop that is written out, iteration by iteration.")
unrolled = unroll

# ----------------------------------------------------------------------------------------- blocks


def block(name: str = "block") -> AbstractContextManager[None]:
    """`with T.block("C"):` — the unit that schedules move."""
    raise _misplaced("T.block")


def init() -> AbstractContextManager[None]:
    """`with T.init():` — statements before the first step of a reduction."""
    raise _misplaced("T.init")


class axis:
    """The iterations of a block."""

    @staticmethod
    def remap(kinds: str, bindings: Sequence[ExprLike]) -> Any:
        """`vi, vk = T.axis.remap("SR", [i, k])`: one iteration per loop, spatial or reduce."""
        raise _misplaced("T.axis.remap")

    @staticmethod
    def spatial(dom: Any, binding: ExprLike, *, dtype: str | None = None) -> Any:
        """`vi = T.axis.spatial(16, i0 * 4 + i1)`; dom is n or (0, n)."""
        raise _misplaced("T.axis.spatial")

    @staticmethod
    def reduce(dom: Any, binding: ExprLike, *, dtype: str | None = None) -> Any:
        """`vk = T.axis.reduce(16, k)`."""
        raise _misplaced("T.axis.reduce")

    S = spatial
    R = reduce


def where(predicate: ExprLike) -> None:
    """The block runs only where the predicate is true."""
    raise _misplaced("T.where")


def reads(*regions: Any) -> None:
    """The reads of the block: T.reads(A[vi, 0:16]). The default comes from its statements."""
    raise _misplaced("T.reads")


def writes(*regions: Any) -> None:
    """The writes of the block. The default comes from its statements."""
    raise _misplaced("T.writes")


def span(minimum: ExprLike, extent: ExprLike) -> slice:
    """A part of a region, [minimum, minimum + extent), if `a:b` does not give the exact extent."""
    raise _misplaced("T.span")


def block_attr(attrs: Mapping[str, Any]) -> None:
    """Annotations of the block."""
    raise _misplaced("T.block_attr")


def evaluate(value: ExprLike) -> None:
    """A call for its effect."""
    raise _misplaced("T.evaluate")


def LetStmt(value: ExprLike) -> AbstractContextManager[Any]:
    """`with T.LetStmt(value) as x:` — x in the statements below it."""
    raise _misplaced("T.LetStmt")


def meta_var(value: ExprLike) -> Any:
    """`x = T.meta_var(value)` — x is another name of the expression, and no variable."""
    raise _misplaced("T.meta_var")


# ------------------------------------------------------------------------------------ expressions


def min(a: ExprLike, b: ExprLike) -> Expr:
    return operate("min", a, b)


def max(a: ExprLike, b: ExprLike) -> Expr:
    return operate("max", a, b)


def truncdiv(a: ExprLike, b: ExprLike) -> Expr:
    """Integer division towards zero, like C's `/`."""
    return operate("tdiv", a, b)


def truncmod(a: ExprLike, b: ExprLike) -> Expr:
    """The remainder of truncdiv, like C's `%`."""
    return operate("tmod", a, b)


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """Integer division towards minus infinity, like Python's `//`."""
    return operate("//", a, b)


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    """The remainder of floordiv, like Python's `%`."""
    return operate("%", a, b)


def cast(value: ExprLike, dtype: str) -> Expr:
    """A conversion: T.cast(x, "float32"), like x.astype("float32")."""
    return converted(_scalar(dtype), value)


def Cast(dtype: str, value: ExprLike) -> Expr:
    """A conversion: T.Cast("float32", x). One to the same dtype stays, too."""
    if isinstance(value, Expr):
        return CastNode(with_lanes(known_dtype(dtype), dtype_of(value.dtype).lanes), value)
    return converted(_scalar(dtype), value)


def call_intrin(dtype: str, name: str, *args: ExprLike) -> Expr:
    """A call of an intrinsic by name, with a result of this dtype."""
    if not isinstance(name, str):
        raise TypeError(f"an intrinsic's name is a string, not '{name}'")
    return Call(name, tuple(expr(a) for a in args), known_dtype(dtype))


def Ramp(base: ExprLike, stride: ExprLike, lanes: int) -> Expr:
    """base, base + stride, … as a vector."""
    _count(lanes)
    first, step = promoted(base, stride)
    return RampNode(first, step, lanes, with_lanes(first.dtype, lanes))


def Broadcast(value: ExprLike, lanes: int) -> Expr:
    """A value in every lane of a vector."""
    _count(lanes)
    scalar = expr(value)
    return BroadcastNode(scalar, lanes, with_lanes(scalar.dtype, lanes))


def Shuffle(vectors: Sequence[ExprLike], lanes: Sequence[int]) -> Expr:
    """A vector of chosen lanes. Lanes are numbered through all given vectors."""
    given = tuple(expr(v) for v in vectors)
    total = sum(dtype_of(v.dtype).lanes for v in given)
    if not lanes or not all(isinstance(n, int) and 0 <= n < total for n in lanes):
        raise TypeError(f"the lanes {list(lanes)} are not numbers below {total}")
    return ShuffleNode(given, tuple(lanes), with_lanes(given[0].dtype, len(lanes)))


def _scalar(dtype: object) -> str:
    return dtype_of(known_dtype(dtype)).scalar


def _count(lanes: object) -> None:
    if not isinstance(lanes, int) or lanes < 1:
        raise TypeError(f"'{lanes}' is not a constant number of lanes")
