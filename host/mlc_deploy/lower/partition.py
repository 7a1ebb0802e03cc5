"""Loop partition: hot loops lose their guards, which stay in the few turns that need them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ..arith import (
    Bounds,
    Linear,
    bounds,
    equal,
    expr_bounds,
    linear,
    simplify,
    simplify_expr,
    to_expr,
)
from ..arith.linear import UNBOUNDED
from ..arith.regions import relax
from ..ir import (
    Block,
    Call,
    Compare,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    Let,
    Load,
    Node,
    PrimFunc,
    Stmt,
    Store,
    Var,
    all_of,
    binary,
    children,
    const,
    dtype_of,
    if_then_else,
    is_const,
    once,
    rebuild,
    same_expr,
    seq,
    substitute,
    walk,
    with_fields,
)
from ..ir.build import conjuncts
from ..ir.names import Names, names_of
from ..ir.parts import is_choice
from ..passes.context import optional
from .annotations import WHOLE
from .bodies import with_body
from .tails import is_seldom, rolled


@optional(level=2)
def partition_loops(func: PrimFunc) -> PrimFunc:
    """for i in range(n): if a*i + r < b: S
    =>   for i in range(m): S;   for i in range(n - m): if a*(i+m) + r < b: S[i := i + m]

    where for i < m the guard holds whatever the loops inside do; and likewise for guards from
    below, and for those of if_then_else. Where m is symbolic,
    so it is for guards from above.

    A parallel loop that is the whole body stays one loop, since its turns are the kernel's tasks:
    parallel i in range(n): S   =>   parallel i in range(n): if i < m: S  else: S
    """
    dimensions = {
        v
        for b in func.buffers
        for n in b.shape
        if isinstance(n, Expr)
        for v in walk(n)
        if isinstance(v, Var)
    }
    ranges: dict[Var, Bounds] = dict.fromkeys(dimensions, (0, None))
    partition = _Partition(names_of(func), dimensions)
    match func.body:
        case Block(body=For(kind="parallel", extent=extent) as loop) as root:
            tasks = partition.tasks if isinstance(extent, Const) else partition.open_tasks
            return with_fields(func, body=with_fields(root, body=tasks(loop, ranges)))
    return with_body(func, partition.visit(func.body, ranges))


class _Partition:
    """The pass: names for the turns where loops are cut, and what the symbolic dimensions are."""

    def __init__(self, names: Names, dimensions: Set[Var]) -> None:
        self.names = names
        self.dimensions = dimensions
        self.known: dict[Node, bool] = {}

    def is_guarded(self, n: Node) -> bool:
        """Whether n is, or has in it, something under a guard."""
        found = self.known.get(n)
        if found is None:
            if isinstance(n, Expr):
                found = any(map(is_choice, walk(n)))
            else:
                found = isinstance(n, If) or any(map(self.is_guarded, children(n)))
            self.known[n] = found
        return found

    def visit(self, s: Stmt, ranges: dict[Var, Bounds]) -> Stmt:
        def visit(m: Any) -> Any:
            if isinstance(m, Expr) or not self.is_guarded(m):
                return m
            if isinstance(m, For):
                high = expr_bounds(m.extent, ranges)[1]
                inside = {**ranges, m.var: (0, None if high is None else high - 1)}
                if m.kind in ("serial", "parallel", "unrolled") and isinstance(m.extent, Const):
                    cuts = self.cuts(m, ranges)
                    if cuts:
                        return self.cut(m, min(cuts), ranges)
                found = _symbolic_cut(m, inside) if m.kind == "serial" else None
                if found is not None and any(n in self.dimensions for n in walk(found.surely)):
                    return self.cut_at(m, found, ranges)
                body = self.visit(m.body, inside)
                return m if body is m.body else with_fields(m, body=body)
            return rebuild(m, visit)

        done: Stmt = visit(s)
        return done

    def tasks(self, loop: For, ranges: dict[Var, Bounds]) -> For:
        body = self.turns(loop, 0, int(loop.extent), ranges)  # type: ignore[call-overload]
        return loop if body is loop.body else with_fields(loop, body=body)

    def open_tasks(self, loop: For, ranges: dict[Var, Bounds]) -> For:
        """Of a number of tasks that only a run decides."""
        known = {**ranges, loop.var: (0, None)}
        found = _symbolic_cut(loop, known)
        if found is None or not any(n in self.dimensions for n in walk(found.surely)):
            body = self.visit(loop.body, known)
            return loop if body is loop.body else with_fields(loop, body=body)
        whole = self.visit(_without(found.guards, loop.body), known)
        rest = self.visit(loop.body, known)
        return with_fields(loop, body=If(loop.var < found.surely, whole, rest))

    def turns(self, loop: For, first: int, end: int, ranges: dict[Var, Bounds]) -> Stmt:
        """The loop's body as its turns [first, end) have it."""
        shifted = substitute(loop.body, {loop.var: loop.var + first}) if first else loop.body
        cuts = self.cuts(with_fields(loop, extent=const(end - first), body=shifted), ranges)
        if cuts:
            at = first + min(cuts)
            parts = (self.turns(loop, a, b, ranges) for a, b in ((first, at), (at, end)))
            return If(loop.var < at, *parts)
        known = {**ranges, loop.var: (first, end - 1)}
        whole = end - first == loop.extent.value  # type: ignore[attr-defined]
        body = loop.body if whole else simplify(loop.body, known)
        if end - first == 1:
            body = simplify(substitute(loop.body, {loop.var: const(first)}), ranges)
        done = self.visit(body, known)
        turns = int(loop.extent)  # type: ignore[call-overload]
        return rolled(done) if is_seldom(end - first, turns) else done

    def cuts(self, loop: For, ranges: dict[Var, Bounds]) -> list[int]:
        """For each guard in the loop that the loop can decide: the turn where it begins to hold, or
        to be in doubt."""
        if WHOLE in loop.annotations:
            return []
        turns = int(loop.extent)  # type: ignore[call-overload]
        found: list[int | None] = []

        def visit(n: Any, known: dict[Var, Bounds], inner: tuple[For, ...]) -> None:
            if not self.is_guarded(n):
                return
            match n:
                case Expr():
                    for m in walk(n):
                        if is_choice(m):
                            parts = conjuncts(m.args[0])
                            found.extend(_turn_of(guard, loop.var, known) for guard in parts)
                    return
                case For():
                    high = expr_bounds(n.extent, known)[1]
                    known = {**known, n.var: (0, None if high is None else high - 1)}
                    inner = (*inner, n)
                case If(condition):
                    wanted = (c for c in conjuncts(condition) if not _is_rare(c, loop, inner))
                    found.extend(_turn_of(guard, loop.var, known) for guard in wanted)
                case Store() if (kept := where_kept(n)) is not None:
                    visit(kept, known, inner)
                    return
            for child in children(n):
                visit(child, known, inner)

        visit(loop.body, dict(ranges), ())
        return [n for n in found if n is not None and 0 < n < turns]

    def cut(self, loop: For, at: int, ranges: dict[Var, Bounds]) -> Stmt:
        kind = loop.kind if loop.kind != "parallel" else "serial"
        turns = int(loop.extent)  # type: ignore[call-overload]
        head = For(loop.var, const(at), kind, loop.body, loop.annotations)
        shifted = substitute(loop.body, {loop.var: loop.var + at})
        tail = For(loop.var, const(turns - at), kind, shifted, loop.annotations)
        parts = [self.visit(simplify(part, ranges), ranges) for part in (head, tail)]
        sizes = at, turns - at
        return seq(
            rolled(part) if is_seldom(size, turns) else part
            for part, size in zip(parts, sizes, strict=True)
        )

    def cut_at(self, loop: For, at: _Turns, ranges: dict[Var, Bounds]) -> Stmt:
        """for i in range(n): if guard: S
        =>   let m = at: for i in range(m): S;  for i in range(n - m): if guard: S[i := i + m]"""
        turn = Var(self.names.fresh(f"{loop.name}_main"), loop.var.dtype)
        head = For(loop.var, turn, "serial", _without(at.guards, loop.body), loop.annotations)
        known = {**ranges, turn: (0, expr_bounds(loop.extent, ranges)[1])}
        end = loop.extent
        if _all_under(at.guards, loop.body):
            end = simplify_expr(binary("min", at.never, end), ranges)
        shifted = substitute(loop.body, {loop.var: loop.var + turn})
        tail = For(loop.var, end - turn, "serial", shifted, loop.annotations)
        whole = simplify_expr(
            binary("max", binary("min", at.surely, loop.extent), const(0, loop.var.dtype)), ranges
        )
        return Let(turn, whole, seq((self.visit(head, known), simplify(tail, known))))


def _is_rare(guard: Expr, loop: For, inner: Sequence[For]) -> bool:
    """Whether the loop leaves the guard in doubt in some turns, and in those hoist_guards will test
    it outside of loops whose work dwarfs the test: then it is not worth a copy of them."""
    used = {n for n in walk(guard) if isinstance(n, Var)}
    dwarfed = any(n.kind == "serial" for n in inner) and not any(n.var in used for n in inner)
    return dwarfed and used != {loop.var}


@dataclass(frozen=True, slots=True)
class _Turns:
    """Guards that hold for all turns < surely, and fail for all turns >= never."""

    surely: Expr
    never: Expr
    guards: frozenset[Expr]


def _symbolic_cut(loop: For, ranges: dict[Var, Bounds]) -> _Turns | None:
    """Of the first guard from above that the loop can decide, and of its like."""
    inner: dict[Var, Bounds] = {}
    first: _Turns | None = None
    for n in walk(loop.body):
        match n:
            case For():
                high = expr_bounds(n.extent, {**ranges, **inner})[1]
                inner[n.var] = (0, None if high is None else high - 1)
            case Let(var):
                inner[var] = UNBOUNDED
            case If(condition) | Call("if_then_else", (condition, _, _)):
                for guard in conjuncts(condition):
                    turns = _symbolic_turns(guard, loop, inner, ranges)
                    if turns is None:
                        continue
                    if first is None:
                        first = turns
                    elif equal(turns.surely, first.surely) and equal(turns.never, first.never):
                        first = replace(first, guards=first.guards | turns.guards)
    return first


def _symbolic_turns(
    guard: Expr, loop: For, inner: dict[Var, Bounds], ranges: dict[Var, Bounds]
) -> _Turns | None:
    form = _below_zero(guard, {**ranges, **inner})
    step = 0 if form is None else form.terms.get(loop.var, 0)
    if form is None or step <= 0:
        return None
    rest = Linear(form.constant, {a: c for a, c in form.terms.items() if a is not loop.var})
    dtype = loop.var.dtype
    reached = relax(to_expr(rest, dtype), 1, inner, ranges)
    if reached is None or any(n is loop.var for n in walk(reached[0])):
        return None
    low, high = reached[0], reached[0] + (reached[1] - 1)
    surely, never = ((const(step - 1, dtype) - least) // step for least in (high, low))
    return _Turns(simplify_expr(surely, ranges), simplify_expr(never, ranges), frozenset((guard,)))


def _all_under(guards: Set[Expr], s: Stmt) -> bool:
    """Whether nothing is stored in s but where one of these guards holds."""
    match s:
        case If(condition, _, None) if guards & set(conjuncts(condition)):
            return True
        case Store() | Evaluate():
            return False
    return all(_all_under(guards, c) for c in children(s) if isinstance(c, Stmt))


def _without(guards: Set[Expr], s: Stmt) -> Stmt:
    """s where these guards hold."""

    @once
    def visit(m: Any) -> Any:
        match m:
            case If(condition, then, otherwise) if guards & set(conjuncts(condition)):
                left = all_of(*(c for c in conjuncts(condition) if c not in guards))
                taken = visit(then)
                return taken if is_const(left, True) else If(left, taken, visit(otherwise))
            case Call("if_then_else", (condition, a, b)) if guards & set(conjuncts(condition)):
                left = all_of(*(c for c in conjuncts(condition) if c not in guards))
                return if_then_else(left, visit(a), visit(b))
        return None if m is None else rebuild(m, visit)

    done: Stmt = visit(s)
    return done


def where_kept(s: Store) -> If | None:
    """B[i] = v if c else B[i]   =>   if c: B[i] = v; None for other stores"""
    match s.value:
        case Call("if_then_else", (condition, value, Load(buffer, indices))) if (
            buffer is s.buffer
            and all(same_expr(a, b) for a, b in zip(indices, s.indices, strict=True))
        ):
            return If(condition, Store(s.buffer, s.indices, value))
    return None


def _turn_of(guard: Expr, var: Var, known: dict[Var, Bounds]) -> int | None:
    """n such that, whatever the other variables, `guard` holds for all var < n (when it bounds var
    from above) or for all var >= n (from below); None for other guards."""
    form = _below_zero(guard, known)
    if form is None:
        return None
    step = form.terms.get(var)
    if step is None:
        return None
    rest = Linear(form.constant, {a: c for a, c in form.terms.items() if a is not var})
    high = bounds(rest, known)[1]
    if high is None:
        return None
    return -(high // step) if step > 0 else high // -step + 1


def _below_zero(guard: Expr, known: dict[Var, Bounds]) -> Linear | None:
    """The form that a comparison of integers says is below zero."""
    if not isinstance(guard, Compare) or guard.op not in ("<", "<=", ">", ">="):
        return None
    kind = dtype_of(guard.a.dtype)
    if not kind.is_integer or kind.lanes > 1:
        return None
    form = linear(guard.a, known).plus(linear(guard.b, known), -1)
    if guard.op in (">", ">="):
        form = form.times(-1)
    if guard.op in ("<=", ">="):
        form = form.plus(Linear(-1, {}))
    return form
