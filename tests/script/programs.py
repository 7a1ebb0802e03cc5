"""Random programs: any nodes in any legal nesting, whether or not they compute anything useful."""

from __future__ import annotations

import random
from typing import Any

from mlc_deploy import te
from mlc_deploy.errors import ScheduleError
from mlc_deploy.ir import (
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    IterVar,
    Let,
    Load,
    Not,
    PrimFunc,
    Ramp,
    Region,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    seq,
    value_range,
)
from mlc_deploy.schedule import Schedule

DTYPES = ("float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint64", "bool")
NAMES = ("i", "j", "i_1", "x", "A", "T", "conv/1:0", "range", "for", "1st", "größe", "max", "")
FLOATS = (0.0, -0.0, 1.0, 0.1, -2.5, 1e-30, 3.4e38, float("inf"), float("-inf"), float("nan"))
INTEGER_OPS = ("+", "-", "*", "//", "%", "tdiv", "tmod", "min", "max", "&", "|", "^", "<<", ">>")
FLOAT_OPS = ("+", "-", "*", "/", "min", "max")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


class Programs:
    """Draws one function: the variables and buffers in reach, and how deep to go on."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.blocks = 0
        self.vars: list[Var] = []
        self.loops: list[For] = []
        self.left: list[Var] = []
        self.buffers: list[Buffer] = []

    def pick(self, *items: Any) -> Any:
        return self.rng.choice(items)

    def chance(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def name(self) -> str:
        return str(self.pick(*NAMES))

    # ------------------------------------------------------------------------------ expressions

    def constant(self, dtype: str) -> Const:
        kind = dtype_of(dtype)
        if kind.kind == "float":
            return const(self.pick(*FLOATS, self.rng.uniform(-9, 9)), dtype)
        if kind.kind == "bool":
            return const(self.chance(2), dtype)
        low, high = (int(v) for v in value_range(dtype))
        value = self.pick(0, 1, 2, self.rng.randint(low, high), low, high)
        return const(value, dtype)

    def expr(self, dtype: str, depth: int = 3) -> Expr:
        kind = dtype_of(dtype)
        if kind.lanes > 1:
            return self.vector(dtype, depth)
        leaves: list[Expr] = [v for v in self.vars if v.dtype == dtype]
        if depth <= 0 or self.chance(4):
            return self.pick(self.constant(dtype), *leaves)  # type: ignore[no-any-return]
        choice = self.rng.randrange(7)
        fitting = [b for b in self.buffers if b.dtype == dtype]
        if choice == 0 and fitting:
            return self.load(self.pick(*fitting), depth - 1)
        if choice == 1:
            test, a, b = self.expr("bool", depth - 1), *self.pair(dtype, depth)
            lazily = self.chance(2)
            return (
                Call("if_then_else", (test, a, b), dtype) if lazily else Select(test, a, b, dtype)
            )
        if choice == 2:
            return Cast(dtype, self.expr(self.pick(*DTYPES), depth - 1))
        if choice == 3:
            args = tuple(self.expr(self.pick(dtype, "int32"), depth - 1) for _ in range(2))
            name = self.pick("pow", "exp", "abs", "llvm.aarch64.neon.sdot", "likely")
            return Call(name, args[: self.rng.randrange(3)], dtype)
        a, b = self.pair(dtype, depth)
        if kind.kind == "bool":
            if choice == 4:
                return Not(a, dtype)
            if choice == 5:
                return Binary(self.pick("and", "or"), a, b, dtype)
            a, b = self.pair(self.pick("int32", "float32", "int64", "bool"), depth)
            return Compare(self.pick(*COMPARISONS), a, b, dtype)
        ops = FLOAT_OPS if kind.kind == "float" else INTEGER_OPS
        return Binary(self.pick(*ops), a, b, dtype)

    def pair(self, dtype: str, depth: int) -> tuple[Expr, Expr]:
        return self.expr(dtype, depth - 1), self.expr(dtype, depth - 1)

    def vector(self, dtype: str, depth: int) -> Expr:
        kind = dtype_of(dtype)
        known = [v for v in self.vars if v.dtype == dtype]
        if known and self.chance(3):
            return known[0]
        choice = self.rng.randrange(4)
        if choice == 0 and kind.is_integer:
            return Ramp(*self.pair(kind.scalar, depth), kind.lanes, dtype)
        if choice == 1 and depth > 0:
            op = self.pick("+", "*", "min") if kind.kind != "bool" else self.pick("and", "or")
            return Binary(op, *self.pair(dtype, depth), dtype)
        if choice == 2 and depth > 0:
            lanes = tuple(self.rng.randrange(2 * kind.lanes) for _ in range(kind.lanes))
            return Shuffle(self.pair(dtype, depth), lanes, dtype)
        return Broadcast(self.expr(kind.scalar, depth - 1), kind.lanes, dtype)

    def indices(self, b: Buffer, depth: int) -> tuple[Expr, ...]:
        return tuple(self.expr(self.pick("int32", "int64", "uint8"), depth) for _ in b.shape)

    def load(self, b: Buffer, depth: int) -> Expr:
        return Load(b, self.indices(b, depth), b.dtype)

    # ------------------------------------------------------------------------------- statements

    def json(self, depth: int = 2) -> Any:
        plain = [None, True, 3, -1, 2.5, float("inf"), "text", 'quo"te', "it's", "both'\"", "\n\\é"]
        if depth and self.chance(3):
            return [self.json(depth - 1) for _ in range(self.rng.randrange(3))]
        if depth and self.chance(3):
            return {self.pick("a", "b c", "ü"): self.json(depth - 1) for _ in range(2)}
        if depth and self.chance(6):
            return tuple(self.json(depth - 1) for _ in range(self.rng.randrange(3)))
        return self.pick(*plain)

    def notes(self) -> dict[str, Any]:
        keys = self.rng.sample(["pragma", "auto unroll", "a.b"], self.rng.randrange(3))
        return {key: self.json() for key in keys} if self.chance(3) else {}

    def buffer(self, dims: tuple[Any, ...] = ()) -> Buffer:
        shape = tuple(self.pick(1, 4, 16, *dims) for _ in range(self.rng.randrange(3)))
        strides = tuple(self.pick(1, 32, const(8), *dims) for _ in shape)
        return Buffer(
            self.name(),
            shape,
            self.pick(*DTYPES),
            strides if self.chance(4) else None,
            self.pick("global", "local"),
            self.pick(64, 16),
        )

    def stmt(self, depth: int) -> Stmt:
        choice = self.rng.randrange(9)
        if depth > 0 and choice < 3:
            return self.loop(depth)
        if depth > 0 and choice == 3:
            other = self.stmt(depth - 1) if self.chance(2) else None
            return If(self.expr("bool"), self.stmt(depth - 1), other)
        if depth > 0 and choice == 4:
            value = self.expr(self.pick(*DTYPES, "float32x4", "boolx8"))
            var = Var(self.name(), value.dtype)
            return Let(var, value, self.within(var, depth - 1))
        if depth > 0 and choice == 5:
            return seq(self.stmt(depth - 1) for _ in range(self.rng.randrange(4)))
        if depth > 0 and choice == 6:
            return self.block(depth)
        if choice == 7 or not self.buffers:
            return Evaluate(self.expr(self.pick(*DTYPES)))
        b = self.pick(*self.buffers)
        indices = self.indices(b, 2)
        if b.ndim == 1 and self.chance(3):
            ramp = Ramp(self.expr("int32"), self.expr("int32"), 4, "int32x4")
            return Store(b, (ramp,), self.expr(f"{b.dtype}x4"))
        return Store(b, indices, self.expr(b.dtype))

    def within(self, var: Var, depth: int) -> Stmt:
        self.vars.append(var)
        body = self.stmt(depth)
        self.vars.pop()
        return body

    def loop(self, depth: int) -> Stmt:
        extent = self.pick(const(4), const(3, "int64"), self.expr("int32", 1))
        dtype = extent.dtype if self.chance(3) else self.pick("int32", "int64")
        var = Var(self.name(), dtype)
        if self.left and self.chance(3):
            var = self.left.pop()  # one variable, bound by two loops in sequence
        kind = self.pick("serial", "serial", "serial", "parallel", "vectorized", "unrolled")
        self.loops.append(For(var, extent, kind, Seq(())))
        loop = For(var, extent, kind, self.within(var, depth - 1), self.notes())
        self.left.append(self.loops.pop().var)
        return loop

    def block(self, depth: int) -> Stmt:
        self.blocks += 1
        name = f"{self.pick('C', 'pad/1', 'it is')}_{self.blocks}"
        iters: list[IterVar] = []
        for _ in range(self.rng.randrange(4)):
            if self.loops and self.chance(2):
                loop = self.pick(*self.loops)
                binding: Expr = loop.var
                extent = self.pick(loop.extent, const(4))
                dtype = loop.var.dtype
            else:
                binding, extent = self.expr(self.pick("int32", "int64"), 1), const(4)
                dtype = self.pick(binding.dtype, "int64")
            var = Var(self.name(), dtype)
            iters.append(IterVar(var, extent, self.pick("spatial", "reduce"), binding))
        allocs = (self.buffer(),) if self.chance(4) else ()
        predicate = self.expr("bool", 1) if self.chance(3) else const(True)
        kept, self.vars = self.vars, [*self.vars, *(i.var for i in iters)]
        self.buffers.extend(allocs)
        reads, writes = self.regions(), self.regions()
        init = self.stmt(0) if self.chance(3) else None
        body = self.stmt(depth - 1)
        del self.buffers[len(self.buffers) - len(allocs) :]
        self.vars = kept
        return Block(name, tuple(iters), reads, writes, body, init, predicate, allocs, self.notes())

    def regions(self) -> tuple[Region, ...]:
        found: list[Region] = []
        for b in self.rng.sample(self.buffers, min(len(self.buffers), self.rng.randrange(3))):
            low = self.indices(b, 1)
            sizes = (const(1), const(4), const(0), const(1, "int64"), self.expr("int32", 1))
            found.append(Region(b, low, tuple(self.pick(*sizes) for _ in low)))
        return tuple(found)

    def function(self) -> PrimFunc:
        symbols = [Var(self.name(), self.pick("int32", "int64")) for _ in range(2)]
        dims = tuple(self.rng.sample([*symbols, symbols[0] * 2], 2)) if self.chance(2) else ()
        params: list[Buffer | Var] = [self.buffer(dims) for _ in range(self.rng.randrange(4))]
        self.buffers = [p for p in params if isinstance(p, Buffer)]
        if self.chance(2):
            params.insert(0, symbols[0])
            self.vars.append(symbols[0])
        allocs = (self.buffer(),) if self.chance(2) else ()
        self.buffers.extend(allocs)
        explicit = self.chance(4)
        reads, notes = (self.regions(), self.notes()) if explicit else ((), {})
        root = Block("root", (), reads, (), self.stmt(4), allocs=allocs, annotations=notes)
        name = self.pick("main", "conv/1", "class", "f")
        return PrimFunc(name, tuple(params), root, self.notes())


def random_function(rng: random.Random) -> PrimFunc:
    return Programs(rng).function()


def random_schedule(rng: random.Random) -> PrimFunc:
    """A tensor program of three stages, after primitives drawn at random."""
    n, m, k = (rng.choice((1, 3, 4, 8, 13)) for _ in range(3))
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    scaled = te.compute((n, m), lambda i, j: te.exp(c[i, j]) * 0.1, name="scaled")
    out = te.compute((n, m), lambda i, j: te.maximum(scaled[i, j], 0.0), name="out")
    sch = Schedule(te.create_prim_func([a, b, out]))
    for _ in range(rng.randrange(9)):
        block = rng.choice(sch.get_blocks())
        loops = sch.get_loops(block)
        if not loops:
            continue
        loop = rng.choice(loops)
        other = rng.choice(sch.get_blocks())
        moves = (
            lambda: sch.split(loop, [None, rng.choice((2, 3, 4))]),  # noqa: B023
            lambda: sch.fuse(*loops[:2]),  # noqa: B023
            lambda: sch.reorder(*rng.sample(loops, len(loops))),  # noqa: B023
            lambda: sch.vectorize(loop),  # noqa: B023
            lambda: sch.unroll(loop),  # noqa: B023
            lambda: sch.parallel(loop),  # noqa: B023
            lambda: sch.annotate(loop, "pragma", [1, {"deep": 2.5}]),  # noqa: B023
            lambda: sch.compute_inline(block),  # noqa: B023
            lambda: sch.compute_at(other, loop),  # noqa: B023
            lambda: sch.reverse_compute_at(other, loop),  # noqa: B023
            lambda: sch.cache_read(block, 0, "local"),  # noqa: B023
            lambda: sch.cache_write(block, 0, "local"),  # noqa: B023
            lambda: sch.decompose_reduction(block, loop),  # noqa: B023
        )
        try:
            rng.choice(moves)()
        except ScheduleError:
            continue
    return sch.func
