"""The reference interpreter: a PrimFunc as a Python function over numpy arrays.

Slow and plain on purpose: every pass and every compiled kernel is checked against it. It
understands blocks and flat loops alike, vectors included, and checks every index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import numbers
from .build import is_const
from .dtypes import dtype_of, numpy_dtype
from .extern import ADDRESS, Reference, extern_name, from_element
from .nodes import (
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    Not,
    PrimFunc,
    Ramp,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
)
from .parts import Parts, is_choice
from .reductions import inits_of_none
from .rewrite import statements, walk

Array = NDArray[Any]


def run(
    func: PrimFunc, *args: Array | int, externs: Callable[[str], Reference] | None = None
) -> int:
    """Runs func on its parameters in order; outputs are written in place. Returns the status that
    a kernel returns: 0, unless the program says otherwise. externs(name) gives a stand-in for a
    user's function that func calls.

    Raises ValueError where an argument does not fit its parameter, IndexError for an access
    outside its buffer.
    """
    if len(args) != len(func.params):
        raise ValueError(f"{func.name} takes {len(func.params)} arguments, {len(args)} given")
    scalars: dict[Var, int] = {}
    arrays: dict[Buffer, Array] = {}
    for param, given in zip(func.params, args, strict=True):
        if isinstance(param, Var):
            scalars[param] = int(given)
    arguments = {p: np.asarray(a) for p, a in zip(func.params, args, strict=True)}
    for param, array in arguments.items():  # a shape may be of what a later argument gives
        if isinstance(param, Buffer) and len(param.shape) == array.ndim:
            for extent, actual in zip(param.shape, array.shape, strict=True):
                if isinstance(extent, Var):
                    scalars.setdefault(extent, actual)
    for param, array in arguments.items():
        if isinstance(param, Buffer):
            arrays[param] = _argument(param, array, scalars)
    program = _Program(func, scalars, externs)
    for buffer in program.allocs:
        shape = tuple(_value(extent, scalars) for extent in buffer.shape)
        arrays[buffer] = np.full(shape, _poison(buffer.dtype), numpy_dtype(buffer.dtype))
    with np.errstate(all="ignore"):
        return program.function(arrays)


def evaluate_grid(
    variables: Sequence[Var], shape: Sequence[int], results: Sequence[Expr]
) -> tuple[Array, ...]:
    """Integer expressions of `variables` at every point of the box `shape`, as flat arrays."""
    names = {v: f"v{n}" for n, v in enumerate(variables)}
    writer = _Writer({}, names)
    grid = np.indices(tuple(shape)).reshape(len(shape), -1)
    scope = dict(zip(names.values(), grid, strict=True))
    points = grid.shape[1] if len(shape) else 1
    return tuple(
        np.broadcast_to(eval(writer.expr(e), dict(INTRINSICS), dict(scope)), (points,))
        for e in results
    )


def _poison(dtype: str) -> Any:
    """The content of fresh memory: a value that shows when it is read before a write."""
    return np.nan if dtype_of(dtype).kind == "float" else 85


def _argument(param: Buffer, given: Array, scalars: dict[Var, int]) -> Array:
    if given.dtype != numpy_dtype(param.dtype):
        raise ValueError(f"'{param.name}' is {param.dtype}, given {given.dtype}")
    shape = tuple(_value(extent, scalars) for extent in param.shape)
    if math.prod(shape) != given.size or (given.ndim == len(shape) and given.shape != shape):
        raise ValueError(f"'{param.name}' has shape {shape}, given {given.shape}")
    flat = given.reshape(shape)
    if not np.shares_memory(flat, given) and given.size:
        raise ValueError(f"'{param.name}' must be contiguous")
    return flat


def _value(extent: Dim, scalars: dict[Var, int]) -> int:
    if isinstance(extent, int):
        return extent
    names = {v: f"v{n}" for n, v in enumerate(scalars)}
    source = _Writer({}, names).expr(extent)
    return int(eval(source, dict(INTRINSICS), {names[v]: x for v, x in scalars.items()}))


class _Program:
    """func compiled to Python source, with the values of its names."""

    def __init__(
        self, func: PrimFunc, scalars: dict[Var, int], externs: Callable[[str], Reference] | None
    ) -> None:
        self.allocs = [b for n in statements(func.body) if isinstance(n, Block) for b in n.allocs]
        used = [n.buffer for n in walk(func.body) if isinstance(n, (Load, Store))]
        buffers = {b: f"b{n}" for n, b in enumerate(dict.fromkeys([*func.buffers, *used]))}
        names = {v: f"s{n}" for n, v in enumerate(scalars)}
        writer = _Writer(buffers, names, externs)
        lines = [f"    {line}" for line in writer.stmt(func.body)] or ["    pass"]
        source = "\n".join([f"def program({', '.join(buffers.values())}):", *lines])
        scope: dict[str, Any] = {
            **INTRINSICS,
            **writer.constants,
            **{names[v]: x for v, x in scalars.items()},
        }
        exec(compile(source, func.name, "exec"), scope)
        self._function = scope["program"]
        self._buffers = buffers
        missing = [b for b in buffers if b not in func.buffers and b not in self.allocs]
        self.allocs += missing  # flat programs carry their scratch buffers without a block

    def function(self, arrays: dict[Buffer, Array]) -> int:
        return self._function(*(arrays[b] for b in self._buffers)) or 0


class _Writer:
    def __init__(
        self,
        buffers: dict[Buffer, str],
        names: dict[Var, str],
        externs: Callable[[str], Reference] | None = None,
    ) -> None:
        self.buffers = buffers
        self.names = names
        self.externs = externs
        self.constants: dict[str, Any] = {}
        self.parts = Parts()  # of the statement that is being written
        self.named = 0

    def name(self, v: Var) -> str:
        return self.names.setdefault(v, f"v{len(self.names)}")

    def begun(self, *roots: Expr) -> Iterator[str]:
        """The lines that a statement with these expressions needs before it."""
        self.parts = Parts(roots)
        for e in roots:
            yield from self.declared(e)

    def declared(self, e: Expr) -> Iterator[str]:
        """Assignments to the names of e's parts."""
        for n in self.parts.due(e):
            self.named += 1
            name = f"t{self.named}"
            if is_choice(n):
                condition, *sides = n.args
                for line, side in zip((f"if {self.expr(condition)}:", "else:"), sides, strict=True):
                    yield line
                    with self.parts.branch():
                        yield from (f"    {line}" for line in self.declared(side))
                        yield f"    {name} = {self.expr(side)}"
            else:
                yield f"{name} = {self.text(n)}"
            self.parts.name(n, name)

    def stmt(self, s: Stmt) -> Iterator[str]:
        match s:
            case For():
                yield from self.begun(s.extent)
                yield f"for {self.name(s.var)} in range({self.expr(s.extent)}):"
                yield from self.indented(s.body)
                if (inits := inits_of_none(s)) is not None:
                    yield f"if {self.expr(s.extent)} <= 0:"
                    yield from self.indented(inits)
            case Block():
                yield from self.block(s)
            case Store(buffer, indices, value):
                yield from self.begun(*indices, value)
                yield f"{self.place(buffer, indices)} = {self.expr(value)}"
            case If(condition, then, otherwise):
                yield from self.begun(condition)
                yield f"if {self.expr(condition)}:"
                yield from self.indented(then)
                if otherwise is not None:
                    yield "else:"
                    yield from self.indented(otherwise)
            case Let(var, value, body):
                yield from self.begun(value)
                yield f"{self.name(var)} = {self.expr(value)}"
                yield from self.stmt(body)
            case Seq(stmts):
                for stmt in stmts:
                    yield from self.stmt(stmt)
            case Evaluate(Call("ret", (status,))):
                yield from self.begun(status)
                yield f"return {self.expr(status)}"
            case Evaluate(Call("prefetch")):
                yield "pass"
            case Evaluate(Call(args=args) as called) if extern_name(called) is not None:
                yield from self.begun(*args)
                yield self.extern(called)
            case Evaluate(value):
                yield from self.begun(value)
                yield self.expr(value)

    def indented(self, s: Stmt) -> Iterator[str]:
        lines = [f"    {line}" for line in self.stmt(s)]
        yield from lines or ["    pass"]

    def block(self, b: Block) -> Iterator[str]:
        for i in b.iters:
            yield from self.begun(i.binding)
            yield f"{self.name(i.var)} = {self.expr(i.binding)}"
        if is_const(b.predicate, True):
            yield from self.block_body(b)
        else:
            yield from self.begun(b.predicate)
            yield f"if {self.expr(b.predicate)}:"
            yield from (f"    {line}" for line in self.block_body(b))

    def block_body(self, b: Block) -> Iterator[str]:
        for i in b.iters:
            yield from self.begun(i.extent)
            yield f"check({self.name(i.var)}, {self.expr(i.extent)})"
        if b.init is not None:
            zeros = [f"{self.name(i.var)} == 0" for i in b.iters if i.kind == "reduce"]
            yield f"if {' and '.join(zeros) or 'True'}:"
            yield from self.indented(b.init)
        yield from self.stmt(b.body)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        checked = (
            f"check({self.expr(i)}, {self.extent(n)})"
            for i, n in zip(indices, buffer.shape, strict=True)
        )
        return f"{self.buffers[buffer]}[{', '.join(checked) or '()'}]"

    def extent(self, extent: Dim) -> str:
        return str(extent) if isinstance(extent, int) else self.expr(extent)

    def expr(self, e: Expr) -> str:
        return self.parts.get(e) or self.text(e)

    def text(self, e: Expr) -> str:
        match e:
            case Const(value, dtype):
                if dtype in ("int32", "int64", "bool"):
                    return str(value) if value >= 0 else f"({value})"
                return self.constant(numpy_dtype(dtype).type(value))
            case Var():
                return self.name(e)
            case Load(buffer, indices):
                return self.place(buffer, indices)
            case Binary(op, a, b):
                x, y = self.expr(a), self.expr(b)
                if op in ("and", "or") and dtype_of(e.dtype).lanes > 1:
                    return f"logical_{op}({x}, {y})"
                if op in ("min", "max", "tdiv", "tmod"):
                    return f"{op}_({x}, {y})"
                if op in FLOORED and (not isinstance(b, Const) or b.value == 0):
                    return f"{FLOORED[op]}_({x}, {y})"
                return f"({x} {op} {y})"
            case Compare(op, a, b):
                return f"({self.expr(a)} {op} {self.expr(b)})"
            case Not(a):
                lanes = dtype_of(e.dtype).lanes
                return f"(not {self.expr(a)})" if lanes == 1 else f"logical_not({self.expr(a)})"
            case Select(c, a, b):
                return f"select_({self.expr(c)}, {self.expr(a)}, {self.expr(b)})"
            case Cast(dtype, a):
                caster = self.constant(numpy_dtype(dtype).type)
                return f"cast_({caster}, {self.expr(a)})"
            case Call("if_then_else", (c, a, b)):
                return f"({self.expr(a)} if {self.expr(c)} else {self.expr(b)})"
            case Call("reinterpret", (a,), dtype):
                return f"{self.expr(a)}.view({self.constant(numpy_dtype(dtype))})"
            case Call(name, (Load(buffer, indices),)) if name == ADDRESS:
                at = "".join(f"check({self.expr(i)}, {self.extent(n)}), "
                             for i, n in zip(indices, buffer.shape, strict=True))  # fmt: skip
                return f"from_element({self.buffers[buffer]}, ({at}))"
            case Call() if extern_name(e) is not None:
                return f"cast_({self.constant(numpy_dtype(e.dtype).type)}, {self.extern(e)})"
            case Call(name) if f"{name}_" not in INTRINSICS:
                raise TypeError(f"cannot interpret the call of '{name}': {e}")
            case Call(name, args, dtype):
                values = ", ".join(self.expr(a) for a in args)
                return f"cast_({self.constant(numpy_dtype(dtype).type)}, {name}_({values}))"
            case Ramp(base, stride, lanes):
                return f"({self.expr(base)} + {self.expr(stride)} * arange({lanes}))"
            case Broadcast(value, lanes):
                return f"broadcast_({self.expr(value)}, {lanes})"
            case Shuffle(vectors, lanes):
                parts = ", ".join(self.expr(v) for v in vectors)
                return f"concatenate([atleast_1d(p) for p in ({parts},)])[{list(lanes)}]"
        raise TypeError(f"cannot interpret {type(e).__name__}: {e}")

    def extern(self, e: Call) -> str:
        name = extern_name(e)
        if self.externs is None or name is None:
            raise TypeError(f"cannot interpret the call of '{name}': {e}")
        function = self.constant(self.externs(name))
        return f"{function}({', '.join(self.expr(a) for a in e.args)})"

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def _check(index: Any, extent: int) -> Any:
    if type(index) is int and 0 <= index < extent:
        return index
    if np.any(np.less(index, 0)) or np.any(np.greater_equal(index, extent)):
        raise IndexError(f"index {index} is outside [0, {extent})")
    return index


def _cast(to: Any, value: Any) -> Any:
    """Converts to a numpy type."""
    return numbers.converted(value, to)[()]


def _erf(x: Any) -> Any:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))[()]


def _vanishing(x: Any, function: Callable[[Any], Any]) -> Any:
    """function(x), which is -0 at -inf."""
    wide = np.float64(x)
    return np.asarray(np.where(np.isneginf(wide), -0.0, function(wide)))[()]


FLOORED = {"//": "floordiv", "%": "floormod"}
INTRINSICS: dict[str, Any] = {
    "check": _check,
    "from_element": from_element,
    "arange": np.arange,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "concatenate": np.concatenate,
    "atleast_1d": np.atleast_1d,
    "broadcast_": lambda value, lanes: np.full(lanes, value),
    "cast_": _cast,
    "select_": lambda c, a, b: np.asarray(np.where(c, a, b))[()],
    "min_": np.minimum,
    "max_": np.maximum,
    "floordiv_": numbers.floor_quotient,
    "floormod_": numbers.floor_remainder,
    "tdiv_": numbers.quotient,
    "tmod_": numbers.remainder,
    "exp_": lambda x: np.exp(np.float64(x)),
    "expm1_": lambda x: np.expm1(np.float64(x)),
    "log1p_": lambda x: np.log1p(np.float64(x)),
    "log_": lambda x: np.log(np.float64(x)),
    "sin_": lambda x: np.sin(np.float64(x)),
    "cos_": lambda x: np.cos(np.float64(x)),
    "tan_": lambda x: np.tan(np.float64(x)),
    "tanh_": lambda x: np.tanh(np.float64(x)),
    "erf_": _erf,
    "gelu_": lambda x: _vanishing(x, lambda v: v * (_erf(v * math.sqrt(0.5)) + 1) / 2),
    "sigmoid_": lambda x: 1 / (1 + np.exp(-np.float64(x))),
    "silu_": lambda x: _vanishing(x, lambda v: v / (1 + np.exp(-v))),
    "sqrt_": np.sqrt,
    "floor_": np.floor,
    "ceil_": np.ceil,
    "nearbyint_": np.rint,
    "trunc_": np.trunc,
    "pow_": lambda x, y: np.power(np.float64(x), np.float64(y)),
    "fmod_": np.fmod,
    "fma_": lambda x, y, z: np.float64(x) * np.float64(y) + np.float64(z),
    "abs_": np.abs,
    "likely_": lambda x: x,
    "bounded_": lambda x, low, high: x,
}
