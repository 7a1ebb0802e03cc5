"""Offsets, pointers, loads and stores of flat buffers in LLVM IR.

Loop variables and offsets have pointer width. An access is a base pointer plus a constant; accesses
that differ by a constant share the base pointer. In loops with cursors the base is the cursor's
pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..arith import Known, Linear, bounds, linear
from ..arith.linear import Opaque, Product, Quotient, Remainder
from ..ir import Buffer, Expr, For, Load, Ramp, Var, dtype_of, is_const, walk, with_lanes
from ..lower.machine.pointers import Cursor
from . import hints, integers
from .registers import Registers
from .types import element_type, integer, lane_numbers, memory_type, repeated, undefined
from .values import Values

Value = Any
I8 = ll.IntType(8)
# dtypes for which LLVM selects 32-bit NEON's load of two registers
PAIRED = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")


@dataclass(slots=True)
class Position:
    """Where a cursor's pointer is: at `offset` elements from the beginning of its place. stored:
    vectors that wait to be stored with their neighbours."""

    cursor: Cursor
    pointer: Value
    offset: int
    stored: list[Value] = field(default_factory=list)


class Addresses:
    """The values of variables and buffers in the function that is emitted, and code for accesses.

    written: the buffers that the kernel stores to, and others in the same memory. shared: buffers
    whose addresses are given away. expr: gives the value of an expression.
    """

    def __init__(self, target: Target, written: set[Buffer], shared: frozenset[Buffer]) -> None:
        self.target = target
        self.word = ll.IntType(target.pointer_bits)
        self.written = written
        self.variables: dict[Var, Value] = {}
        self.ranges = Known()
        self.pointers: dict[Buffer, Value] = {}
        # base pointers and offsets computed so far; a scope's entries hold in its inner scopes
        self.scopes: list[dict[Any, Value]] = [{}]
        self.positions: Sequence[Position] = ()  # of the loop that is being emitted
        self.registers = Registers(shared)
        self.reads_only = False  # whether that loop stores to registers alone
        self.b: ll.IRBuilder = ll.IRBuilder()
        self.expr: Values[Value] = Values(self.value)

    def value(self, e: Expr) -> Value:
        """The code of an expression that has no value yet."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------- offsets

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
        if not self.stays(atom):
            return self.to_word(self.atom_value(atom))
        return self.shared(("atom", atom), lambda: self.to_word(self.atom_value(atom)))

    def stays(self, atom: Any) -> bool:
        """Whether an atom is the same wherever its variables are: nothing that it reads is
        written."""
        match atom:
            case Opaque(expr=e):
                return not any(isinstance(n, Load) and n.buffer in self.written for n in walk(e))
            case Quotient(form, _) | Remainder(form, _):
                return self.lasting(form)
            case Product(factors):
                return all(map(self.stays, factors))
        return True

    def lasting(self, form: Linear) -> bool:
        """Whether all atoms of an index stay."""
        return all(map(self.stays, form.terms))

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
        return integers.floored(self.b, op, value, by)

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
        at = self.position(buffer, form)
        if at is not None:
            base = self.moved(at, constant) if at.cursor.moves else at.pointer
            constant -= at.offset
        elif form.terms:
            start = base

            def moved() -> Value:
                return self.b.gep(start, [self.form(moving)], True, "", memory)

            base = self.shared((buffer, moving), moved) if self.lasting(form) else moved()
        size = dtype_of(buffer.dtype).bytes
        align = gcd(
            buffer.alignment, form.constant * size, *(c * size for c in form.terms.values())
        )
        if constant and buffer.scope == "local" and not form.terms:
            base = self.shared(
                (buffer, constant),
                lambda: self.b.gep(base, [self.number(constant)], True, "", memory),
            )
        elif constant:
            base = self.b.gep(base, [self.number(constant)], True, "", memory)
        return base, align

    # ---------------------------------------------------------------------------- cursors

    def cursor_start(self, s: For, cursor: Cursor, begin: Value, before: Any) -> Value:
        """The cursor's pointer in the loop's first iteration."""
        self.b.position_before(before.terminator)
        rest = Linear(cursor.start, cursor.moving.without(s.var).terms)
        offset = self.b.add(self.form(rest), self.b.mul(begin, self.word(cursor.step)))
        memory = memory_type(cursor.buffer.dtype)
        start = self.b.gep(self.pointers[cursor.buffer], [offset], True, "", memory)
        return hints.opaque(self.b, start)

    def position(self, buffer: Buffer, form: Linear) -> Position | None:
        """The cursor for an access to the buffer at an index."""
        place = Linear(0, form.terms)
        here = [
            p
            for p in self.positions
            if p.cursor.buffer is buffer
            and p.cursor.moving == place
            and (p.cursor.moves or p.cursor.first <= form.constant)
        ]
        return max(here, key=lambda p: p.cursor.first) if here else None

    def moved(self, at: Position, offset: int) -> Value:
        """The cursor's pointer, moved to a constant offset."""
        if offset != at.offset:
            size = dtype_of(at.cursor.buffer.dtype).bytes
            by = step = self.number((offset - at.offset) * size)
            if at.cursor.groups:
                by = self.shared(("unseen", step.constant), lambda: hints.unseen(self.b, step))
            there = self.b.gep(at.pointer, [by], True, "", I8)
            at.pointer, at.offset = hints.opaque(self.b, there), offset
        return at.pointer

    # ------------------------------------------------------------------- loads and stores

    def load(self, e: Load) -> Value:
        (index,) = e.indices
        if isinstance(index, Ramp) and not is_const(index.stride, 1):
            return self.gather(e, index)
        first = index.base if isinstance(index, Ramp) else index
        form = linear(first, self.ranges)
        if e.buffer in self.written and (e.buffer.scope == "local" or not self.reads_only):
            return self.held(e, form) or self.load_at(e, form)
        if not self.lasting(form):
            return self.load_at(e, form)
        return self.shared(("load", e.buffer, form, e.dtype), lambda: self.load_at(e, form))

    def held(self, e: Load, form: Linear) -> Value | None:
        """The value of the last store in this block, where it is known."""
        if form.terms:
            self.registers.forget(e.buffer)
            return None
        return self.registers.get(self.b.block, e.buffer, form.constant, e.dtype)

    def load_at(self, e: Load, form: Linear) -> Value:
        """The load of a vector or an element at an index."""
        at = self.position(e.buffer, form)
        if at is not None and at.cursor.groups:
            return self.grouped(at, form, e.dtype)
        pointer, align = self.address(e.buffer, form)
        kind = dtype_of(e.dtype)
        pair = kind.lanes * kind.bits == 2 * self.target.register_bits > 0
        pair = pair and e.buffer.scope != "local"  # the buffer would stay in memory
        if self.target.arch == "arm" and pair and kind.scalar in PAIRED:
            half = with_lanes(e.dtype, kind.lanes // 2)
            halves = hints.load_registers(self.b, "arm", pointer, half, 2)
            return self.shuffle([*halves], tuple(range(kind.lanes)))
        value = self.b.load(pointer, align=align, typ=memory_type(e.dtype))
        return self.from_memory(value, e.dtype)

    def grouped(self, at: Position, form: Linear, dtype: str) -> Value:
        """The vector at an index, loaded together with its neighbours."""
        cursor = at.cursor
        start, counts = cursor.groups[form.constant]
        lanes = dtype_of(dtype).lanes

        def loaded() -> list[Value]:
            if start != cursor.start:
                hints.fence(self.b)
            vectors: list[Value] = []
            for count in counts:
                pointer = self.moved(at, start + len(vectors) * lanes)
                vectors += hints.load_registers(self.b, self.target.arch, pointer, dtype, count)
            return vectors

        vectors = self.shared(("group", cursor.buffer, cursor.moving, start), loaded)
        return vectors[(form.constant - start) // lanes]

    def from_memory(self, value: Value, dtype: str) -> Value:
        return self.b.trunc(value, element_type(dtype)) if _is_bool(dtype) else value

    def gather(self, e: Load, index: Ramp) -> Value:
        result: Value = undefined(element_type(e.dtype))
        self.registers.forget(e.buffer)
        for lane in range(index.lanes):
            form = linear(index.base + index.stride * lane, self.ranges)
            pointer, align = self.address(e.buffer, form)
            value = self.b.load(pointer, align=align, typ=memory_type(e.buffer.dtype))
            value = self.from_memory(value, e.buffer.dtype)
            result = self.b.insert_element(result, value, integer(32, lane))
        return result

    def store(self, buffer: Buffer, index: Expr, value: Value, dtype: str) -> None:
        if isinstance(index, Ramp) and not is_const(index.stride, 1):
            for lane in range(index.lanes):
                element = self.b.extract_element(value, integer(32, lane))
                self.store(buffer, index.base + index.stride * lane, element, buffer.dtype)
            return
        first = index.base if isinstance(index, Ramp) else index
        form = linear(first, self.ranges)
        at = self.position(buffer, form)
        if at is not None and at.cursor.groups:
            self.store_grouped(at, form, value)
            return
        pointer, align = self.address(buffer, form)
        stored = self.b.zext(value, memory_type(dtype)) if _is_bool(dtype) else value
        store = self.b.store(stored, pointer, align=align)
        if buffer.scope != "local":
            return
        if form.terms:
            self.registers.forget(buffer)
        else:
            self.registers.put(self.b.block, buffer, form.constant, dtype, value, store)

    def store_grouped(self, at: Position, form: Linear, value: Value) -> None:
        """Stores a vector together with the neighbours before it, once it is the last of them."""
        start, (count,) = at.cursor.groups[form.constant]
        at.stored.append(value)
        if len(at.stored) == count:
            hints.store_registers(self.b, self.moved(at, start), at.stored)
            at.stored.clear()

    # ---------------------------------------------------------------------------- vectors

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


def _is_bool(dtype: str) -> bool:
    return dtype_of(dtype).kind == "bool"
