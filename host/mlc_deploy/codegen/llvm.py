"""Flat loops to LLVM IR.

A kernel becomes two functions: a body whose pointers are marked aligned and noalias, and the entry
of the kernel ABI (device_runtime/include/mlc_abi.h) that unpacks mlc_args for it. lower/machine/
rewrites loops for a machine; this file only emits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target
from mlc_targets.object_format import ALIGNMENT

from ..arith import expr_bounds, turn_range
from ..ir import (
    SCALARS,
    SHORT_FLOATS,
    TUNE_CPU,
    Block,
    Call,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    Seq,
    Stmt,
    Store,
    Var,
    addressed,
    contents,
    statements,
    walk,
)
from ..ir.outlines import whole_parameters
from ..lower import KEPT, PHASE, Kernel
from ..lower.machine.pointers import CURSORS, HIDDEN
from . import hints
from .addresses import Position
from .entry import emit_entry
from .expressions import Expressions
from .saturate import rounds
from .signature import elements, left_out_of, scalars_of, scratch_layout
from .tasks import TaskRange, task_range
from .types import element_type, memory_type

Value = Any
I8, I32 = (ll.IntType(n) for n in (8, 32))
POINTER = ll.PointerType()


def emit_kernel(module: ll.Module, kernel: Kernel, target: Target, symbol: str) -> None:
    """Adds a kernel's two functions to the module; the entry is named `symbol`. Kernels that share
    a function get an entry each, with its number after the name."""
    _Emitter(module, kernel, target, symbol).emit()


class _Emitter(Expressions):
    """The state of emitting one kernel, and code for its functions and statements."""

    def __init__(self, module: ll.Module, kernel: Kernel, target: Target, symbol: str) -> None:
        self.code = kernel.machine.body
        written = {s.buffer for s in statements(self.code) if isinstance(s, Store)}
        shared = addressed(self.code)
        super().__init__(target, written | kernel.aliased | shared, shared, kernel.name)
        self.module = module
        self.kernel = kernel
        self.symbol = symbol
        self.sharers = kernel.body.attrs.get(SCALARS, ())  # the scalars of each kernel
        self.fast = self.contracted = ("contract",) if self.machine.fused else ()
        self.tuned = target.tuned_for(kernel.machine.attrs.get(TUNE_CPU))
        self.phases = 0  # functions besides the body, so far
        self.tasks: tuple[Var, Value] | None = None  # the loop over tasks, and its first iteration
        self.rounds = "nearbyint" in contents(self.code).calls
        self.short = bool(kernel.body.attrs.get(SHORT_FLOATS))
        self.zeros = whole_parameters(kernel.body)

    # --------------------------------------------------------------------------- functions

    def emit(self) -> None:
        body, flushes = self.body_function(), self.machine.flushes
        if self.sharers:
            body.attributes.add("noinline")
            for number, given in enumerate(self.sharers):
                scalars = [self.scalar(v)(given[v.name]) for v in scalars_of(self.kernel)]
                name = f"{self.symbol}{number}"
                left_out = left_out_of(self.kernel, number)
                emit_entry(
                    body, self.kernel, self.word, name, self.tuned, scalars, left_out, flushes
                )
        else:
            body.attributes.add("alwaysinline")
            emit_entry(body, self.kernel, self.word, self.symbol, self.tuned, flushes=flushes)
        self.registers.finish(self.module)

    def body_function(self) -> ll.Function:
        function = self.function(f"{self.symbol}.body", [I32, I32])
        begin, end = function.args[-2:]
        assert isinstance(self.code, Block)
        code = self.code.body
        tasks = task_range(self.kernel)
        if tasks is not None:
            assert isinstance(code, For)
            first, end = self.iteration(tasks, begin), self.iteration(tasks, end)
            self.tasks = code.var, first
            self.loop(code, first, end)
        else:
            self.stmt(code)
        self.b.ret(I32(0))
        return function

    def function(self, name: str, more: Sequence[ll.Type]) -> ll.Function:
        """A function to emit into, with the kernel's pointers, its scalars and the workspace as
        parameters, then more."""
        buffers = self.kernel.body.buffers
        scalars = scalars_of(self.kernel)
        types = [POINTER] * len(buffers) + [*map(self.scalar, scalars), POINTER, *more]
        function = ll.Function(self.module, ll.FunctionType(I32, types), name)
        function.linkage = "internal"
        hints.attributes(function, self.tuned)
        for buffer, arg in zip(buffers, function.args, strict=False):
            arg.name = buffer.name
            if buffer not in self.kernel.aliased:
                arg.add_attribute("noalias")
            arg.attributes.align = buffer.alignment
            self.pointers[buffer] = arg
        for v, arg in zip(scalars, function.args[len(buffers) :], strict=False):
            self.variables[v] = arg
            values = [given[v.name] for given in self.sharers]
            if arg.type == self.word:
                self.ranges.bind(v, (min(values), max(values)) if values else (0, None))
        workspace = function.args[len(buffers) + len(scalars)]
        workspace.add_attribute("noalias")
        workspace.attributes.align = ALIGNMENT
        self.b = ll.IRBuilder(function.append_basic_block("entry"))
        self.allocate(workspace)
        return function

    def scalar(self, v: Var) -> ll.Type:
        """The type of a scalar parameter: integers of any dtype have a pointer's width."""
        kind = element_type(v.dtype)
        return self.word if isinstance(kind, ll.IntType) else kind

    def phase(self, s: For) -> None:
        """A loop as a function of its own, called in its place: it gets all registers, while
        constants of outer loops would take some."""
        used = [v for v in dict.fromkeys(walk(s)) if isinstance(v, Var) and v in self.variables]
        values = [self.variables[v] for v in used]
        outside = self.b, self.pointers, self.variables, self.scopes, self.tasks
        given = self.b.function.args[: len(self.kernel.body.buffers)]
        given += self.b.function.args[len(given) :][: len(scalars_of(self.kernel)) + 1]
        self.pointers, self.variables, self.scopes, self.tasks = {}, {}, [{}], None
        self.phases += 1
        function = self.function(f"{self.symbol}.phase{self.phases}", [v.type for v in values])
        function.attributes.add("noinline")
        self.variables |= zip(used, function.args[len(given) :], strict=True)
        self.loop(s, self.word(0), self.integer(s.extent))
        self.b.ret(I32(0))
        self.b, self.pointers, self.variables, self.scopes, self.tasks = outside
        self.b.call(function, [*given, *values])

    def iteration(self, tasks: TaskRange, task: Value) -> Value:
        """The iteration of the parallel loop that a task begins at."""
        number = Var("task")
        self.variables[number] = task
        self.ranges.bind(number, (0, None))
        return self.integer(tasks.begins_at(number))

    def allocate(self, workspace: Value) -> None:
        offsets, _ = scratch_layout(self.kernel)
        for buffer in self.kernel.scratch:
            if buffer.scope == "local":
                count = elements(self.kernel, buffer)
                array = ll.ArrayType(memory_type(buffer.dtype), count)
                place = self.b.alloca(array, name=buffer.name)
                place.align = ALIGNMENT
                place.type = POINTER  # llvmlite gives allocas, and only these, a typed pointer
                self.pointers[buffer] = place
            else:
                self.pointers[buffer] = self.b.gep(
                    workspace, [self.word(offsets[buffer])], True, buffer.name, I8
                )

    # -------------------------------------------------------------------------- statements

    def stmt(self, s: Stmt) -> None:
        self.expr.begin()
        match s:
            case For() if KEPT in s.annotations and self.tasks is not None:
                self.kept(s, *self.tasks)
            case For():
                self.nest(s)
            case Store(buffer, (index,), value):
                # No fused products below a rounding: an unrounded product may change the integer by
                # one.
                self.fast = () if self.rounds and rounds(value) else self.contracted
                self.store(buffer, index, self.expr(value), value.dtype)
            case Seq(stmts):
                for stmt in stmts:
                    self.stmt(stmt)
            case If():
                self.branch(s)
            case Let(var, value, body):
                self.variables[var] = self.expr(value)
                self.stmt(body)
            case Evaluate(Call("ret", (status,))):
                self.leave(status)
            case Evaluate(Call("prefetch", (Load(buffer, (index,)),))):
                memory = memory_type(buffer.dtype)
                there = [self.integer(index)]  # not inbounds: it may lie outside of the tensor
                hints.prefetch(self.b, self.b.gep(self.pointers[buffer], there, False, "", memory))
            case Evaluate(value):
                self.expr(value)
            case _:
                raise AssertionError(f"no code for {type(s).__name__}\n{s}")

    def nest(self, s: For) -> None:
        if PHASE in s.annotations:
            self.phase(s)
        else:
            self.loop(s, self.word(0), self.integer(s.extent))

    def kept(self, s: For, task: Var, first: Value) -> None:
        """A loop that does not run where the thread's task before has done so."""
        begins = self.b.icmp_signed("==", self.variables[task], first)
        other = self.expr((task % s.annotations[KEPT]).equal(0))
        then, after = (self.b.append_basic_block(name) for name in ("then", "endif"))
        self.b.cbranch(self.b.or_(begins, other), then, after)
        self.b.position_at_end(then)
        self.scopes.append({})
        self.nest(s)
        self.scopes.pop()
        self.b.branch(after)
        self.b.position_at_end(after)

    def leave(self, status: Expr) -> None:
        """The kernel returns; code after it in the block is never reached."""
        self.b.ret(self.expr(status))
        self.b.position_at_end(self.b.append_basic_block("never"))

    def loop(self, s: For, begin: Value, end: Value) -> None:
        """A loop tested before its first iteration, unless its extent is known to be positive."""
        before = self.b.block
        body = self.b.append_basic_block(f"{s.var.name}.body")
        after = self.b.append_basic_block(f"{s.var.name}.end")
        if isinstance(begin, ll.Constant) and self.runs(s):
            self.b.branch(body)
        else:
            self.b.cbranch(self.b.icmp_signed("<", begin, end), body, after)
        cursors = s.annotations.get(CURSORS, ())
        starts = [self.cursor_start(s, cursor, begin, before) for cursor in cursors]
        self.b.position_at_end(body)
        counter = self.b.phi(self.word, s.var.name)
        counter.add_incoming(begin, before)
        positions: list[Position] = []
        for cursor, start in zip(cursors, starts, strict=True):
            pointer = self.b.phi(POINTER)
            pointer.add_incoming(start, before)
            positions.append(Position(cursor, pointer, cursor.start))
        phis = [at.pointer for at in positions]
        self.positions = positions
        self.variables[s.var] = counter
        self.ranges.bind(s.var, turn_range(s.extent, {}))
        outside, self.reads_only = self.reads_only, _stores_to_registers(s)
        pointers = dict(self.pointers)
        for buffer in s.annotations.get(HIDDEN, ()):
            self.pointers[buffer] = hints.opaque(self.b, pointers[buffer])
        self.scoped(s.body)
        self.pointers = pointers
        self.reads_only = outside
        for at, phi in zip(positions, phis, strict=True):
            phi.add_incoming(self.moved(at, at.cursor.start + at.cursor.step), self.b.block)
        self.positions = ()
        following = self.b.add(counter, self.word(1), flags=("nuw", "nsw"))
        counter.add_incoming(following, self.b.block)
        self.b.cbranch(self.b.icmp_signed("<", following, end), body, after)
        self.b.position_at_end(after)

    def runs(self, s: For) -> bool:
        """Whether the loop is known to have an iteration."""
        if isinstance(s.extent, Const):
            return bool(s.extent.value > 0)
        least = expr_bounds(s.extent, self.ranges)[0] if self.sharers else None
        return least is not None and least > 0

    def scoped(self, s: Stmt) -> None:
        self.scopes.append({})
        self.stmt(s)
        self.scopes.pop()

    def branch(self, s: If) -> None:
        then = self.b.append_basic_block("then")
        otherwise = self.b.append_basic_block("else") if s.otherwise is not None else None
        after = self.b.append_basic_block("endif")
        self.b.cbranch(self.expr(s.condition), then, otherwise or after)
        for block, part in ((then, s.then), (otherwise, s.otherwise)):
            if block is not None and part is not None:
                self.b.position_at_end(block)
                self.scoped(part)
                self.b.branch(after)
        self.b.position_at_end(after)


def _stores_to_registers(s: Stmt) -> bool:
    """Whether all stores in s are to local buffers."""
    return all(n.buffer.scope == "local" for n in statements(s) if isinstance(n, Store))
