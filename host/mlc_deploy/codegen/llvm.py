"""Flat loops to LLVM IR.

A kernel becomes two functions: a body whose pointers carry their alignment and say that they do
not alias, and the entry of the kernel ABI (device_runtime/include/mlc_abi.h) that unpacks mlc_args
for it. Loop variables and offsets have pointer width. An access is one base pointer, shared by all
accesses that differ by a constant, plus that constant (decision 3 of the design).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..arith import Known, Linear, bounds, linear, loop_ranges
from ..arith.linear import Opaque, Product, Quotient, Remainder
from ..ir import (
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
    Let,
    Load,
    Not,
    Ramp,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    const,
    dtype_of,
    is_const,
    statements,
    walk,
    with_lanes,
)
from ..lower import Kernel
from ..schedule.tensor_intrin import is_llvm
from . import hints, operators, products, saturate
from .cursors import Cursor, cursor_at, find_cursors, sums_around
from .entry import emit_entry
from .lanes import broadcast_lanes, halved_loads, paired_loads
from .loop_facts import is_phase, stores_to_registers
from .machine_calls import machine_call
from .saturate import rounds, saturated
from .signature import elements, scalars_of, scratch_layout
from .tasks import task_loop, turn_of
from .transposes import transposed_loads
from .types import element_type, integer, lane_numbers, memory_type, repeated, undefined
from .values import Values

Value = Any
I1, I8, I32 = (ll.IntType(n) for n in (1, 8, 32))
POINTER = ll.PointerType()
ALIGNMENT = 64
# dtypes of which 32-bit NEON loads two registers at once; LLVM selects it for no others
PAIRED = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")


def emit_kernel(module: ll.Module, kernel: Kernel, target: Target, symbol: str) -> None:
    """Adds a kernel's two functions to the module; the one to call is named `symbol`."""
    _Emitter(module, kernel, target, symbol).emit()


class _Emitter:
    """The state of emitting one kernel: the builder, and what names and pointers stand for."""

    def __init__(self, module: ll.Module, kernel: Kernel, target: Target, symbol: str) -> None:
        self.module = module
        self.kernel = kernel
        self.symbol = symbol
        self.target = target
        self.word = ll.IntType(target.pointer_bits)
        self.machine = operators.machine_of(target)
        self.fast = self.contracted = ("contract",) if self.machine.fused else ()
        self.variables: dict[Var, Value] = {}
        self.ranges = Known()
        self.pointers: dict[Buffer, Value] = {}
        # base pointers and offsets computed so far; a scope's entries hold in its inner scopes
        self.scopes: list[dict[Any, Value]] = [{}]
        self.cursors: Sequence[Cursor] = ()  # of the loop that is being emitted
        self.phases = 0  # how many functions there are besides the body
        self.reads_only = False  # whether that loop stores to registers alone
        self.rounds = rounds(kernel.body)
        self.written = {s.buffer for s in statements(kernel.body) if isinstance(s, Store)}
        self.written |= kernel.aliased
        self.b: ll.IRBuilder = ll.IRBuilder()
        self.expr: Values[Value] = Values(self.value)

    # --------------------------------------------------------------------------- functions

    def emit(self) -> None:
        emit_entry(self.body_function(), self.kernel, self.word, self.symbol)

    def body_function(self) -> ll.Function:
        function = self.function(f"{self.symbol}.body", [I32, I32])
        begin, end = function.args[-2:]
        root = self.kernel.body.body
        assert isinstance(root, Block)
        code = transposed_loads(root.body)
        if self.target.arch in ("arm", "aarch64") and self.target.register_bits:
            code = halved_loads(code, self.target.register_bits)
            if self.target.arch == "arm":
                code = paired_loads(code, self.target.register_bits)
            code = broadcast_lanes(code, self.target.register_bits)
        if task_loop(self.kernel) is not None:
            assert isinstance(code, For)
            self.loop(code, self.turn(code, begin), self.turn(code, end))
        else:
            self.stmt(code)
        self.b.ret(I32(0))
        return function

    def function(self, name: str, more: Sequence[ll.Type]) -> ll.Function:
        """A function to emit into, with the kernel's pointers, its scalars and the workspace as
        parameters, then more."""
        buffers = self.kernel.body.buffers
        scalars = scalars_of(self.kernel)
        types = [POINTER] * len(buffers) + [self.word] * len(scalars) + [POINTER, *more]
        function = ll.Function(self.module, ll.FunctionType(I32, types), name)
        function.linkage = "internal"
        hints.attributes(function)
        model = hints.scheduling_model(self.kernel.body, self.target)
        for key, value in self.target.tuned_for(model).items():
            set.add(function.attributes, f'"{key}"="{value}"')
        for buffer, arg in zip(buffers, function.args, strict=False):
            arg.name = buffer.name
            if buffer not in self.kernel.aliased:
                arg.add_attribute("noalias")
            arg.attributes.align = buffer.alignment
            self.pointers[buffer] = arg
        for v, arg in zip(scalars, function.args[len(buffers) :], strict=False):
            self.variables[v] = arg
            self.ranges.bind(v, (0, None))
        workspace = function.args[len(buffers) + len(scalars)]
        workspace.add_attribute("noalias")
        workspace.attributes.align = ALIGNMENT
        self.b = ll.IRBuilder(function.append_basic_block("entry"))
        self.allocate(workspace)
        return function

    def phase(self, s: For) -> None:
        """A loop as a function of its own, called where it stands: LLVM allots it all registers,
        rather than what constants of the loops around leave."""
        used = [v for v in dict.fromkeys(walk(s)) if isinstance(v, Var) and v in self.variables]
        values = [self.variables[v] for v in used]
        outside = self.b, self.pointers, self.variables, self.scopes
        given = self.b.function.args[: len(self.kernel.body.buffers)]
        given += self.b.function.args[len(given) :][: len(scalars_of(self.kernel)) + 1]
        self.pointers, self.variables, self.scopes = {}, {}, [{}]
        self.phases += 1
        function = self.function(f"{self.symbol}.phase{self.phases}", [v.type for v in values])
        function.attributes.add("noinline")
        self.variables |= zip(used, function.args[len(given) :], strict=True)
        self.loop(s, self.word(0), self.integer(s.extent))
        self.b.ret(I32(0))
        self.b, self.pointers, self.variables, self.scopes = outside
        self.b.call(function, [*given, *values])

    def turn(self, loop: For, task: Value) -> Value:
        """The turn of the parallel loop that a task stands for."""
        number = Var("task")
        self.variables[number] = task
        self.ranges.bind(number, (0, None))
        return self.integer(turn_of(loop, number))

    def allocate(self, workspace: Value) -> None:
        offsets, _ = scratch_layout(self.kernel)
        for buffer in self.kernel.scratch:
            if buffer.scope == "local":
                count = elements(self.kernel, buffer)
                array = ll.ArrayType(memory_type(buffer.dtype), count)
                place = self.b.alloca(array, name=buffer.name)
                place.align = ALIGNMENT
                place.type = POINTER  # llvmlite types allocas by what they hold; others it does not
                self.pointers[buffer] = place
            else:
                self.pointers[buffer] = self.b.gep(
                    workspace, [self.word(offsets[buffer])], True, buffer.name, I8
                )

    # -------------------------------------------------------------------------- statements

    def stmt(self, s: Stmt) -> None:
        self.expr.begin()
        match s:
            case For() if is_phase(s):
                self.phase(s)
            case For():
                self.loop(s, self.word(0), self.integer(s.extent))
            case Store(buffer, (index,), value):
                # What is rounded to whole numbers differs by one where a product is not rounded.
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

    def leave(self, status: Expr) -> None:
        """The kernel returns; what follows in the same block is never reached."""
        self.b.ret(self.expr(status))
        self.b.position_at_end(self.b.append_basic_block("never"))

    def loop(self, s: For, begin: Value, end: Value) -> None:
        """A loop tested before its first turn, unless its extent is known to be positive."""
        before = self.b.block
        body = self.b.append_basic_block(f"{s.var.name}.body")
        after = self.b.append_basic_block(f"{s.var.name}.end")
        if isinstance(s.extent, Const) and isinstance(begin, ll.Constant) and s.extent.value > 0:
            self.b.branch(body)
        else:
            self.b.cbranch(self.b.icmp_signed("<", begin, end), body, after)
        cursors = find_cursors(s, self.ranges, self.target.arch)
        starts = [self.cursor_start(s, cursor, begin, before) for cursor in cursors]
        self.b.position_at_end(body)
        counter = self.b.phi(self.word, s.var.name)
        counter.add_incoming(begin, before)
        for cursor, start in zip(cursors, starts, strict=True):
            cursor.pointer = self.b.phi(POINTER)
            cursor.pointer.add_incoming(start, before)
            cursor.offset = cursor.start
        phis = [cursor.pointer for cursor in cursors]
        self.cursors = cursors
        self.variables[s.var] = counter
        self.ranges.bind(s.var, loop_ranges([s])[s.var])
        outside, self.reads_only = self.reads_only, stores_to_registers(s)
        pointers = dict(self.pointers)
        for buffer in sums_around(s):
            self.pointers[buffer] = hints.opaque(self.b, pointers[buffer])
        self.scoped(s.body)
        self.pointers = pointers
        self.reads_only = outside
        for cursor, phi in zip(cursors, phis, strict=True):
            phi.add_incoming(self.moved(cursor, cursor.start + cursor.step), self.b.block)
        self.cursors = ()
        following = self.b.add(counter, self.word(1), flags=("nuw", "nsw"))
        counter.add_incoming(following, self.b.block)
        self.b.cbranch(self.b.icmp_signed("<", following, end), body, after)
        self.b.position_at_end(after)

    def cursor_start(self, s: For, cursor: Cursor, begin: Value, before: Any) -> Value:
        """Where a cursor points to in the loop's first turn."""
        self.b.position_before(before.terminator)
        rest = {a: c for a, c in cursor.moving.terms.items() if a is not s.var}
        offset = self.b.add(
            self.form(Linear(cursor.start, rest)), self.b.mul(begin, self.word(cursor.step))
        )
        memory = memory_type(cursor.buffer.dtype)
        start = self.b.gep(self.pointers[cursor.buffer], [offset], True, "", memory)
        return hints.opaque(self.b, start)

    def moved(self, cursor: Cursor, offset: int) -> Value:
        """The cursor's pointer, moved to a constant offset."""
        if offset != cursor.offset:
            step = self.number((offset - cursor.offset) * dtype_of(cursor.buffer.dtype).bytes)
            by = step
            if cursor.groups:
                by = self.shared(("unseen", step.constant), lambda: hints.unseen(self.b, step))
            there = self.b.gep(cursor.pointer, [by], True, "", I8)
            cursor.pointer, cursor.offset = hints.opaque(self.b, there), offset
        return cursor.pointer

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

    # -------------------------------------------------------------------------- addresses

    def integer(self, e: Expr) -> Value:
        """An index expression in pointer width."""
        return self.form(linear(e, self.ranges))

    def form(self, form: Linear) -> Value:
        total: Value = None
        for atom, coefficient in form.terms.items():
            term = self.atom(atom)
            if coefficient != 1:
                term = self.b.mul(term, self.number(coefficient), flags=("nsw",))
            total = term if total is None else self.b.add(total, term, flags=("nsw",))
        if total is None:
            return self.number(form.constant)
        if form.constant:
            total = self.b.add(total, self.number(form.constant), flags=("nsw",))
        return total

    def number(self, n: int) -> ll.Constant:
        """A constant of pointer width."""
        return integer(self.target.pointer_bits, n)

    def atom(self, atom: Any) -> Value:
        if isinstance(atom, Var):
            value = self.variables[atom]
            return self.to_word(value)
        return self.shared(("atom", atom), lambda: self.to_word(self.atom_value(atom)))

    def to_word(self, value: Value) -> Value:
        if value.type.width < self.word.width:
            return self.b.sext(value, self.word)
        return self.b.trunc(value, self.word) if value.type.width > self.word.width else value

    def atom_value(self, atom: Any) -> Value:
        match atom:
            case Quotient(form, divisor):
                return self.divided("//", form, divisor)
            case Remainder(form, divisor):
                return self.divided("%", form, divisor)
            case Product(factors):
                total = self.atom(factors[0])
                for factor in factors[1:]:
                    total = self.b.mul(total, self.atom(factor), flags=("nsw",))
                return total
            case Opaque(expr=e):
                return self.expr(e)
        raise AssertionError(atom)

    def divided(self, op: str, form: Linear, divisor: int) -> Value:
        value, by = self.form(form), self.word(divisor)
        low = bounds(form, self.ranges)[0]
        if low is not None and low >= 0:
            return self.b.udiv(value, by) if op == "//" else self.b.urem(value, by)
        return operators.floored(self.b, op, value, by)

    def shared(self, key: Any, make: Callable[[], Value]) -> Value:
        """A value computed once per scope and seen by the scopes inside."""
        for scope in self.scopes:
            if key in scope:
                return scope[key]
        value = make()
        self.scopes[-1][key] = value
        return value

    def address(self, buffer: Buffer, form: Linear) -> tuple[Value, int]:
        """(pointer to the element at an index, its known alignment in bytes)."""
        memory = memory_type(buffer.dtype)
        moving = Linear(0, form.terms)
        base = self.pointers[buffer]
        constant = form.constant
        cursor = cursor_at(self.cursors, buffer, form)
        if cursor is not None:
            base = self.moved(cursor, constant) if cursor.moves else cursor.pointer
            constant -= cursor.offset
        elif form.terms:
            base = self.shared(
                (buffer, moving),
                lambda: self.b.gep(base, [self.form(moving)], True, "", memory),
            )
        size = dtype_of(buffer.dtype).bytes
        align = gcd(
            buffer.alignment, form.constant * size, *(c * size for c in form.terms.values())
        )
        if constant:
            base = self.b.gep(base, [self.number(constant)], True, "", memory)
        return base, align

    def load(self, e: Load) -> Value:
        (index,) = e.indices
        if isinstance(index, Ramp) and not is_const(index.stride, 1):
            return self.gather(e, index)
        first = index.base if isinstance(index, Ramp) else index
        form = linear(first, self.ranges)
        if e.buffer in self.written and (e.buffer.scope == "local" or not self.reads_only):
            return self.load_at(e, form)
        return self.shared(("load", e.buffer, form, e.dtype), lambda: self.load_at(e, form))

    def load_at(self, e: Load, form: Linear) -> Value:
        """A vector, or an element, from an index on."""
        cursor = cursor_at(self.cursors, e.buffer, form)
        if cursor is not None and cursor.groups:
            return self.grouped(cursor, form, e.dtype)
        pointer, align = self.address(e.buffer, form)
        kind = dtype_of(e.dtype)
        pair = kind.lanes * kind.bits == 2 * self.target.register_bits > 0
        pair = pair and e.buffer.scope != "local"  # that would stay in memory
        if self.target.arch == "arm" and pair and kind.scalar in PAIRED:
            half = with_lanes(e.dtype, kind.lanes // 2)
            halves = hints.load_registers(self.b, "arm", pointer, half, 2)
            return self.shuffle([*halves], tuple(range(kind.lanes)))
        value = self.b.load(pointer, align=align, typ=memory_type(e.dtype))
        return self.from_memory(value, e.dtype)

    def grouped(self, cursor: Cursor, form: Linear, dtype: str) -> Value:
        """The vector at an index, which is loaded at once with its neighbours."""
        start, counts = cursor.groups[form.constant]
        lanes = dtype_of(dtype).lanes

        def loaded() -> list[Value]:
            if start != cursor.start:
                hints.fence(self.b)
            vectors: list[Value] = []
            for count in counts:
                pointer = self.moved(cursor, start + len(vectors) * lanes)
                vectors += hints.load_registers(self.b, self.target.arch, pointer, dtype, count)
            return vectors

        vectors = self.shared(("group", cursor.buffer, cursor.moving, start), loaded)
        return vectors[(form.constant - start) // lanes]

    def from_memory(self, value: Value, dtype: str) -> Value:
        return self.b.trunc(value, element_type(dtype)) if _is_bool(dtype) else value

    def gather(self, e: Load, index: Ramp) -> Value:
        if is_const(index.stride, 2) and index.lanes % 2 == 0 and self.target.arch != "arm":
            return self.every_other(e, index)  # 32-bit ARM loads single lanes as cheaply
        result: Value = undefined(element_type(e.dtype))
        for lane in range(index.lanes):
            form = linear(index.base + index.stride * lane, self.ranges)
            pointer, align = self.address(e.buffer, form)
            value = self.b.load(pointer, align=align, typ=memory_type(e.buffer.dtype))
            value = self.from_memory(value, e.buffer.dtype)
            result = self.b.insert_element(result, value, integer(32, lane))
        return result

    def every_other(self, e: Load, index: Ramp) -> Value:
        """Elements base, base + 2, … by two vector loads. The second begins an element early, so
        that nothing beyond the last element is read."""
        lanes = index.lanes
        halves = []
        for first in (index.base, index.base + (lanes - 1)):
            ramp = Ramp(first, const(1, first.dtype), lanes, index.dtype)
            halves.append(self.load(Load(e.buffer, (ramp,), e.dtype)))
        early = tuple(range(0, lanes, 2))
        late = tuple(lanes + 1 + n for n in range(0, lanes, 2))
        return self.shuffle(halves, early + late)

    def store(self, buffer: Buffer, index: Expr, value: Value, dtype: str) -> None:
        if isinstance(index, Ramp) and not is_const(index.stride, 1):
            for lane in range(index.lanes):
                element = self.b.extract_element(value, integer(32, lane))
                self.store(buffer, index.base + index.stride * lane, element, buffer.dtype)
            return
        first = index.base if isinstance(index, Ramp) else index
        pointer, align = self.address(buffer, linear(first, self.ranges))
        if _is_bool(dtype):
            value = self.b.zext(value, memory_type(dtype))
        self.b.store(value, pointer, align=align)

    # ------------------------------------------------------------------------- expressions

    def value(self, e: Expr) -> Value:
        match e:
            case Const():
                return ll.Constant(element_type(e.dtype), e.value)
            case Var():
                return self.narrowed(self.variables[e], e.dtype)
            case Load():
                return self.load(e)
            case Binary():
                return self.binary(e)
            case Compare(op, a, b):
                x, y = self.expr(a), self.expr(b)
                return operators.compare(self.b, self.machine, op, x, y, a.dtype)
            case Not(a):
                return self.b.not_(self.expr(a))
            case Select(c, a, b):
                return self.b.select(self.expr(c), self.expr(a), self.expr(b))
            case Cast() if (whole := saturated(e, self.target)) is not None:
                return saturate.emit(self.b, self.target, whole, self.expr(whole.x))
            case Cast(dtype, a):
                return operators.cast(self.b, self.machine, self.expr(a), a.dtype, dtype)
            case Call("if_then_else", (c, a, b)):
                return self.conditional(c, a, b)
            case Call("reinterpret", (a,)):
                return self.b.bitcast(self.expr(a), element_type(e.dtype))
            case Call(name, args):
                values = list(map(self.expr, args))
                if is_llvm(name):
                    return machine_call(
                        self.b, self.target, name, values, e.dtype, self.kernel.name
                    )
                return operators.call(self.b, self.machine, name, values, e.dtype, self.kernel.name)
            case Ramp(base, stride, lanes):
                return self.ramp(self.expr(base), self.expr(stride), lanes, e.dtype)
            case Broadcast(value, lanes):
                return self.splat(self.expr(value), lanes)
            case Shuffle(vectors, lanes):
                return self.shuffle([self.expr(v) for v in vectors], lanes)
        raise AssertionError(f"no code for {type(e).__name__}\n{e}")

    def narrowed(self, value: Value, dtype: str) -> Value:
        """A loop variable as data of its dtype."""
        wanted = element_type(dtype)
        if value.type == wanted or not isinstance(value.type, ll.IntType):
            return value
        if value.type.width > wanted.width:
            return self.b.trunc(value, wanted)
        return self.b.sext(value, wanted)

    def splat(self, value: Value, lanes: int) -> Value:
        if isinstance(value, ll.Constant) and not isinstance(value.constant, str):
            return repeated(value, lanes)
        vector = ll.VectorType(value.type, lanes)
        return self.shared(("splat", value, lanes), lambda: self.splatted(value, vector))

    def splatted(self, value: Value, vector: ll.VectorType) -> Value:
        nothing = undefined(vector)
        first = self.b.insert_element(nothing, value, integer(32, 0))
        return self.b.shuffle_vector(first, nothing, lane_numbers((0,) * vector.count))

    def ramp(self, base: Value, stride: Value, lanes: int, dtype: str) -> Value:
        steps = ll.Constant(element_type(dtype), [*range(lanes)])
        return self.b.add(self.splat(base, lanes), self.b.mul(steps, self.splat(stride, lanes)))

    def shuffle(self, vectors: list[Value], lanes: tuple[int, ...]) -> Value:
        assert 1 <= len(vectors) <= 2
        return self.shared(
            ("shuffle", *vectors, lanes),
            lambda: self.b.shuffle_vector(
                vectors[0],
                vectors[1] if len(vectors) == 2 else undefined(vectors[0].type),
                lane_numbers(lanes),
            ),
        )

    def binary(self, e: Binary) -> Value:
        if e.op in ("//", "%") and self.divides_words(e):
            form = linear(e, self.ranges)
            return self.narrowed(self.form(form), e.dtype)
        if (factors := products.widened_factors(e, self.target)) is not None:
            x, y = map(self.expr, factors)
            return products.emit(self.b, self.target, factors, (x, y))
        a, b = self.expr(e.a), self.expr(e.b)
        flags = self.fast
        if isinstance(e.a, Load) and e.a.buffer.scope == "local":
            # a sum in registers begins with 0, and 0 + x is x up to the sign of a zero
            flags = (*flags, "nsz")
        return operators.binary(self.b, self.machine, e.op, a, b, e.dtype, flags)

    def divides_words(self, e: Binary) -> bool:
        """Whether a division may be done as one of indices: signed, by a constant, of a dtype
        that a word holds."""
        kind = dtype_of(e.dtype)
        fits = kind.kind == "int" and kind.lanes == 1 and 32 <= kind.bits <= self.word.width
        return fits and isinstance(e.b, Const) and e.b.value > 0

    def conditional(self, condition: Expr, a: Expr, b: Expr) -> Value:
        """Only the side taken is evaluated: two blocks and a phi."""
        then = self.b.append_basic_block("taken")
        otherwise = self.b.append_basic_block("other")
        after = self.b.append_basic_block("value")
        self.b.cbranch(self.expr(condition), then, otherwise)
        incoming = []
        for block, side in ((then, a), (otherwise, b)):
            self.b.position_at_end(block)
            self.scopes.append({})
            with self.expr.branch():
                incoming.append((self.expr(side), self.b.block))
            self.scopes.pop()
            self.b.branch(after)
        self.b.position_at_end(after)
        result = self.b.phi(element_type(a.dtype))
        for value, block in incoming:
            result.add_incoming(value, block)
        return result


def _is_bool(dtype: str) -> bool:
    return dtype_of(dtype).kind == "bool"
