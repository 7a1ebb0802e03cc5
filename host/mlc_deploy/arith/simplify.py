"""Simplification of expressions and statements under what is known of variables' ranges."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from ..ir import (
    Block,
    Compare,
    Const,
    Expr,
    For,
    If,
    IterVar,
    Let,
    Node,
    Seq,
    Stmt,
    Var,
    bottom_up,
    const,
    dtype_of,
    rebuild,
    substitute,
)
from ..ir.build import FALSE, MIRRORED, TRUE, compare
from ..ir.rewrite import DEEP
from .linear import UNBOUNDED, Bounds, Known, Linear, Ranges, bounds, expr_bounds, linear, to_expr

N = TypeVar("N", bound=Node)


def simplify_expr(e: Expr, ranges: Ranges) -> Expr:
    """e, simpler or as it is. Float arithmetic is left alone."""
    if type(e) is Const:
        return e
    if type(e) is Var:
        return _pinned(e, ranges)
    known = ranges if type(ranges) is Known else Known(ranges)
    found = known.simplified.get(e)
    if found is None:
        if known.depth == DEEP:
            for m in bottom_up(e, known.simplified):
                known.simplified[m] = _simplified(m, known)
            return known.simplified[e]
        known.depth += 1
        found = known.simplified[e] = _simplified(e, known)
        known.depth -= 1
    return found


def _simplified(e: Expr, ranges: Known) -> Expr:
    if type(e) is Const or type(e) is Var:
        return simplify_expr(e, ranges)
    if type(e) is Compare:
        return _comparison(e, ranges)
    kind = dtype_of(e.dtype)
    if kind.is_integer and kind.lanes == 1 and kind.bits >= 32:
        return to_expr(linear(e, ranges), e.dtype)
    return rebuild(e, lambda child: simplify_expr(child, ranges))


def _pinned(e: Var, ranges: Ranges) -> Expr:
    low, high = ranges.get(e, UNBOUNDED)
    return const(low, e.dtype) if low is not None and low == high else e


def _comparison(e: Compare, ranges: Ranges) -> Expr:
    kind = dtype_of(e.a.dtype)
    if not (kind.is_integer and kind.lanes == 1 and kind.bits >= 32):
        return rebuild(e, lambda child: simplify_expr(child, ranges))
    difference = linear(e.a, ranges).plus(linear(e.b, ranges), -1)
    decided = decide(e.op, bounds(difference, ranges))
    if decided is None and isinstance(ranges, Known):
        decided = _decide_by_tops(e.op, difference, ranges)
    if decided is not None:
        return TRUE if decided else FALSE
    return _balanced(e.op, difference, e.a.dtype)


def decide(op: str, of: Bounds) -> bool | None:
    """Whether `x op 0` holds for every (True) or no (False) x within bounds."""
    low, high = of
    match op:
        case "<":
            return True if high is not None and high < 0 else _no(low is not None and low >= 0)
        case "<=":
            return True if high is not None and high <= 0 else _no(low is not None and low > 0)
        case ">" | ">=":
            return decide(
                MIRRORED[op], (None if high is None else -high, None if low is None else -low)
            )
        case "==":
            return True if low == high == 0 else _no(_excludes_zero(of))
        case "!=":
            return False if low == high == 0 else True if _excludes_zero(of) else None
    raise ValueError(op)


def _decide_by_tops(op: str, difference: Linear, known: Known) -> bool | None:
    """True where `difference op 0` always holds since no variable exceeds its top."""
    if op in (">", ">="):
        op, difference = MIRRORED[op], difference.times(-1)
    if op not in ("<", "<="):
        return None
    most = Linear(difference.constant, {})
    for atom, coefficient in difference.terms.items():
        top = known.tops.get(atom) if isinstance(atom, Var) and coefficient > 0 else None
        most = most.plus(Linear(0, {atom: 1}) if top is None else top, coefficient)
    return True if decide(op, bounds(most, known)) else None


def _no(holds: bool) -> bool | None:
    return False if holds else None


def _excludes_zero(of: Bounds) -> bool:
    low, high = of
    return (low is not None and low > 0) or (high is not None and high < 0)


def _balanced(op: str, difference: Linear, dtype: str) -> Expr:
    """positive terms `op` negative terms, so that guards read as they were written."""
    left = Linear(0, {a: c for a, c in difference.terms.items() if c > 0})
    right = Linear(0, {a: -c for a, c in difference.terms.items() if c < 0})
    if not left.terms:
        return compare(MIRRORED[op], to_expr(right, dtype), const(difference.constant, dtype))
    if difference.constant > 0 and right.terms:
        left = Linear(difference.constant, left.terms)
    else:
        right = Linear(-difference.constant, right.terms)
    return compare(op, to_expr(left, dtype), to_expr(right, dtype))


def simplify(n: N, ranges: Ranges | None = None) -> N:
    """n with its expressions simplified, loops of one turn and empty statements removed.

    Guards that the ranges decide go; ranges come from the loops around.
    """
    known = Known(ranges or {})

    def bind(var: Var, extent: Expr) -> None:
        high = expr_bounds(extent, known)[1]
        if high is None:
            known.bind(var, (0, None), linear(extent, known).plus(Linear(-1, {})))
        else:
            known.bind(var, (0, max(high - 1, 0)))

    def visit(m: Any) -> Any:
        match m:
            case Expr():
                return simplify_expr(m, known)
            case For():
                return _for(m)
            case Block():
                for i in m.iters:
                    bind(i.var, i.extent)
                return rebuild(m, visit)
            case IterVar():
                extent = visit(m.extent)
                binding = simplify_expr(m.binding, known)
                if extent is m.extent and binding is m.binding:
                    return m
                return IterVar(m.var, extent, m.kind, binding)
            case If():
                condition = visit(m.condition)
                if isinstance(condition, Const):
                    taken = m.then if condition.value else m.otherwise
                    return Seq(()) if taken is None else visit(taken)
                then = visit(m.then)
                otherwise = None if m.otherwise is None else visit(m.otherwise)
                if is_empty(then) and (otherwise is None or is_empty(otherwise)):
                    return Seq(())
                if condition is m.condition and then is m.then and otherwise is m.otherwise:
                    return m
                return If(condition, then, otherwise)
            case Let():
                value = visit(m.value)
                if dtype_of(m.var.dtype).is_integer and dtype_of(m.var.dtype).lanes == 1:
                    known.bind(m.var, expr_bounds(value, known))
                if isinstance(value, (Const, Var)):
                    return visit(substitute(m.body, {m.var: value}))
                body = visit(m.body)
                return m if value is m.value and body is m.body else Let(m.var, value, body)
            case Seq():
                kept = rebuild(m, visit)
                if isinstance(kept, Seq) and any(is_empty(s) for s in kept.stmts):
                    left = tuple(s for s in kept.stmts if not is_empty(s))
                    return left[0] if len(left) == 1 else Seq(left)
                return kept
        return rebuild(m, visit)

    def _for(m: For) -> Stmt:
        extent = visit(m.extent)
        if isinstance(extent, Const):
            if extent.value <= 0:
                return Seq(())
            if extent.value == 1 and not m.annotations:
                return cast(Stmt, visit(substitute(m.body, {m.var: const(0, m.var.dtype)})))
        bind(m.var, extent)
        body = visit(m.body)
        if is_empty(body):
            return Seq(())
        if extent is m.extent and body is m.body:
            return m
        return For(m.var, extent, m.kind, body, m.annotations)

    return cast(N, visit(n))


def is_empty(s: Stmt) -> bool:
    return isinstance(s, Seq) and not s.stmts


def loop_ranges(loops: list[For]) -> dict[Var, Bounds]:
    """The ranges of loops' variables, from the outermost in."""
    known: dict[Var, Bounds] = {}
    for loop in loops:
        high = expr_bounds(loop.extent, known)[1]
        known[loop.var] = (0, None if high is None else max(high - 1, 0))
    return known


def equal(a: Expr, b: Expr, ranges: Ranges | None = None) -> bool:
    """Whether two integer expressions are certainly equal."""
    return linear(a, ranges or {}) == linear(b, ranges or {})
