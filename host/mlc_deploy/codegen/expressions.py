"""Expressions of flat loops in LLVM IR."""

from __future__ import annotations

from typing import Any

from llvmlite import ir as ll

from mlc_targets import Target

from ..arith import linear
from ..arith.normalize import may_wrap
from ..arith.value_ranges import divides, fits, never_negative, shifts
from ..errors import CodegenError
from ..ir import (
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    Shuffle,
    Var,
    dtype_of,
    extern_name,
    is_address,
    same_expr,
)
from ..ir.lanes import guarded
from ..schedule.tensor_intrin import is_llvm
from . import integers, operators, products, saturate
from .addresses import Addresses
from .calls import call_named
from .machine_calls import machine_call
from .saturate import saturated
from .types import element_type, memory_type, undefined

Value = Any


class Expressions(Addresses):
    """Code for expressions. name: the kernel's, for messages."""

    def __init__(
        self, target: Target, written: set[Buffer], shared: frozenset[Buffer], name: str
    ) -> None:
        super().__init__(target, written, shared)
        self.name = name
        self.machine = operators.machine_of(target)
        self.fast: tuple[str, ...] = ()  # LLVM's fast-math flags of the statement
        self.short = False  # floats that become bytes are within int16
        self.zeros: frozenset[Var] = frozenset()  # variables that may be zero points

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
            case Cast() if (whole := saturated(e, self.target, self.zeros)) is not None:
                x, zero = self.expr(whole.x), self.expr(whole.zero)
                return saturate.emit(self.b, self.target, whole, x, zero, self.short)
            case Cast(dtype, a):
                within = dtype_of(a.dtype).kind == "float" and dtype_of(dtype).is_integer
                within = within and fits(a, dtype, self.ranges)
                return operators.cast(self.b, self.machine, self.expr(a), a.dtype, dtype, within)
            case Call("if_then_else", (c, a, b)):
                return self.conditional(c, a, b)
            case Call("reinterpret", (a,)):
                return self.b.bitcast(self.expr(a), element_type(e.dtype))
            case Call() if (function := extern_name(e)) is not None:
                return self.extern(e, function)
            case Call(name, args):
                values = list(map(self.expr, args))
                if is_llvm(name):
                    return machine_call(self.b, self.target, name, values, e.dtype, self.name)
                return operators.call(self.b, self.machine, name, values, e.dtype, self.name)
            case Ramp(base, stride, lanes):
                return self.ramp(self.expr(base), self.expr(stride), lanes, e.dtype)
            case Broadcast(value, lanes):
                return self.splat(self.expr(value), lanes)
            case Shuffle(vectors, lanes):
                return self.shuffle([self.expr(v) for v in vectors], lanes)
        raise AssertionError(f"no code for {type(e).__name__}\n{e}")

    def extern(self, e: Call, function: str) -> Value:
        """The call of a user's function; for vectors, one call per lane. Raises CodegenError for a
        function that the kernel also calls with other types."""
        kind = dtype_of(e.dtype)
        given = [self.pointer_to(a) if is_address(a) else self.expr(a) for a in e.args]
        one = element_type(kind.scalar)

        def called(args: list[Value]) -> Value:
            known = self.b.module.globals.get(function)
            wanted = ll.FunctionType(one, [a.type for a in args])
            if known is not None and known.function_type != wanted:
                raise CodegenError(
                    f"'{function}' is called as {wanted} and as {known.function_type}",
                    where=self.name,
                    mend="arguments of the same types: .astype",
                )
            return call_named(self.b, function, one, *args)

        if kind.lanes == 1:
            return called(given)
        lanes: Value = undefined(element_type(e.dtype))
        for n in range(kind.lanes):
            at = ll.Constant(ll.IntType(32), n)
            each = [
                self.b.extract_element(a, at) if isinstance(a.type, ll.VectorType) else a
                for a in given
            ]
            lanes = self.b.insert_element(lanes, called(each), at)
        return lanes

    def pointer_to(self, e: Expr) -> Value:
        """The pointer to an element."""
        assert isinstance(e, Call)
        match e.args[0]:
            case Load(buffer, (index,)) if dtype_of(index.dtype).lanes == 1:
                there, memory = [self.integer(index)], memory_type(buffer.dtype)
                return self.b.gep(self.pointers[buffer], there, False, "", memory)
        raise CodegenError("the address of a vector's elements is passed on", where=self.name,
                           mend="a serial loop around the call")  # fmt: skip

    def narrowed(self, value: Value, dtype: str) -> Value:
        """A loop variable as data of its dtype."""
        wanted = element_type(dtype)
        if value.type == wanted or not isinstance(value.type, ll.IntType):
            return value
        if value.type.width > wanted.width:
            return self.b.trunc(value, wanted)
        return self.b.sext(value, wanted)

    def binary(self, e: Binary) -> Value:
        if e.op in ("//", "%") and self.divides_words(e):
            form = linear(e, self.ranges)
            return self.narrowed(self.form(form), e.dtype)
        wide = e.op == "*" and type(e.a) is Cast
        if wide and (factors := products.widened_factors(e, self.target)) is not None:
            x, y = map(self.expr, factors)
            return products.emit(self.b, self.target, factors, (x, y))
        if e.op == "max" and type(e.a) is Select and (number := guarded(e.a)) is not None:
            if same_expr(e.a.b, e.b):
                return operators.larger_number(
                    self.b, self.machine, self.expr(number), self.expr(e.b)
                )
        a, b = self.expr(e.a), self.expr(e.b)
        if e.op in integers.DIVISIONS:
            return integers.divided(self.b, self.machine, e.op, a, b, self.division(e))
        if e.op in integers.SHIFTS:
            kind, within = dtype_of(e.dtype), shifts(e.b, self.ranges)
            return integers.shifted(self.b, e.op, a, b, kind, within)
        flags = self.fast
        if isinstance(e.a, Load) and e.a.buffer.scope == "local":
            # a sum in registers begins with 0, and 0 + x is x up to the sign of a zero
            flags = (*flags, "nsz")
        return operators.binary(self.b, self.machine, e.op, a, b, e.dtype, flags)

    def division(self, e: Binary) -> integers.Division:
        """What is known of a division."""
        natural = dtype_of(e.dtype).kind == "uint" or never_negative(e.a, e.b, self.ranges)
        return integers.Division(natural, divides(e.a, e.b, self.ranges))

    def divides_words(self, e: Binary) -> bool:
        """Whether a division may be done as one of indices: signed, by a constant, of a dtype that
        fits a word."""
        kind = dtype_of(e.dtype)
        fits = kind.kind == "int" and kind.lanes == 1 and 32 <= kind.bits <= self.word.width
        if not (fits and isinstance(e.b, Const) and e.b.value > 0):
            return False
        return not may_wrap(linear(e.a, self.ranges), e.dtype, self.ranges)

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
