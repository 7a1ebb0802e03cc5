"""Loop partition: hot loops lose their guards, which stay in the few iterations that need them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ..arith import (
    Bounds,
    bounds,
    equal,
    expr_bounds,
    simplify,
    simplify_expr,
    to_expr,
    turn_range,
)
from ..arith.linear import UNBOUNDED
from ..arith.regions import relax
from ..ir import (
    Block,
    Call,
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
    if_then_else,
    is_const,
    once,
    rebuild,
    same_expr,
    seq,
    substitute,
    symbols_of,
    walk,
    with_fields,
)
from ..ir.build import conjuncts
from ..ir.names import Names, names_of
from ..ir.parts import is_choice
from ..passes.context import optional
from .annotations import WHOLE
from .bodies import with_body
from .lanes import below_zero, uses
from .tails import is_seldom, rolled


@optional(level=2)
def partition_loops(func: PrimFunc) -> PrimFunc:
    """for i in range(n): if a*i + r < b: S
    =>   for i in range(m): S;   for i in range(n - m): if a*(i+m) + r < b: S[i := i + m]

    where the guard holds for i < m in all iterations of the loops inside. Guards from below and
    those of if_then_else are cut alike. A symbolic m is found for guards from above only.

    A parallel loop that is the whole body stays one loop, since its iterations are the kernel's
    tasks:

    parallel i in range(n): S   =>   parallel i in range(n): if i < m: S  else: S
    """
    dimensions = {v for b in func.buffers for v in symbols_of(b)}
    ranges: dict[Var, Bounds] = dict.fromkeys(dimensions, (0, None))
    partition = _Partition(names_of(func), dimensions)
    match func.body:
        case Block(body=For(kind="parallel", extent=extent) as loop) as root:
            tasks = partition.tasks if isinstance(extent, Const) else partition.open_tasks
            return with_fields(func, body=with_fields(root, body=tasks(loop, ranges)))
    return with_body(func, partition.visit(func.body, ranges))


class _Partition:
    """The pass, with unique names for the cuts, and the symbolic dimensions."""

    def __init__(self, names: Names, dimensions: Set[Var]) -> None:
        self.names = names
        self.dimensions = dimensions
        self.known: dict[Node, bool] = {}

    def is_guarded(self, n: Node) -> bool:
        """Whether n is or contains something under a guard."""
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
                inside = {**ranges, m.var: turn_range(m.extent, ranges)}
                if m.kind in ("serial", "parallel", "unrolled") and isinstance(m.extent, Const):
                    cuts = self.cuts(m, ranges)
                    if cuts:
                        return self.cut(m, min(cuts), ranges)
                found = _symbolic_cut(m, inside) if m.kind in ("serial", "parallel") else None
                if found is not None and any(n in self.dimensions for n in walk(found.surely)):
                    return self.cut_at(m, found, ranges)
                if m.kind == "parallel":
                    return with_body(m, self.task(m.body, m.var, inside))
                return with_body(m, self.visit(m.body, inside))
            return rebuild(m, visit)

        done: Stmt = visit(s)
        return done

    def tasks(self, loop: For, ranges: dict[Var, Bounds]) -> For:
        turns = int(loop.extent)  # type: ignore[call-overload]
        return with_body(loop, self.turns(loop, 0, turns, ranges))

    def open_tasks(self, loop: For, ranges: dict[Var, Bounds]) -> For:
        """As `tasks`, for a number of tasks that is known at run time only."""
        known = {**ranges, loop.var: (0, None)}
        found = _symbolic_cut(loop, known) if WHOLE not in loop.annotations else None
        if found is None or not any(n in self.dimensions for n in walk(found.surely)):
            return with_body(loop, self.visit(loop.body, known))
        whole = self.visit(_without(found.guards, loop.body), known)
        rest = self.visit(loop.body, known)
        return with_fields(loop, body=If(loop.var < found.surely, whole, rest))

    def turns(self, loop: For, first: int, end: int, ranges: dict[Var, Bounds]) -> Stmt:
        """The loop's body for its iterations [first, end)."""
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
        done = self.task(body, loop.var, known)
        turns = int(loop.extent)  # type: ignore[call-overload]
        return rolled(done) if is_seldom(end - first, turns) else done

    def task(self, body: Stmt, task: Var, known: dict[Var, Bounds]) -> Stmt:
        """The body of a parallel loop: twice, if its number decides about guards of inner loops."""
        found = _guards_of_task(body, task, known)
        if found is None:
            return self.visit(body, known)
        surely, guards = found
        whole = self.visit(simplify(_without(guards, body), known), known)
        return If(surely, whole, rolled(self.visit(body, known)))

    def cuts(self, loop: For, ranges: dict[Var, Bounds]) -> list[int]:
        """The iterations where a guard in the loop begins or ceases to hold in all iterations of
        the loops inside."""
        if WHOLE in loop.annotations:
            return []
        turns = int(loop.extent)  # type: ignore[call-overload]
        found: list[int | None] = []

        def visit(n: Any, known: dict[Var, Bounds], inner: tuple[For, ...]) -> None:
            if n is None or not self.is_guarded(n):
                return
            match n:
                case Expr():
                    for m in walk(n):
                        if is_choice(m):
                            parts = conjuncts(m.args[0])
                            found.extend(_turn_of(guard, loop.var, known) for guard in parts)
                    return
                case For():
                    known = {**known, n.var: turn_range(n.extent, known)}
                    inner = (*inner, n)
                case If(condition, then, otherwise):
                    wanted = (c for c in conjuncts(condition) if not _is_rare(c, loop, inner))
                    found.extend(_turn_of(guard, loop.var, known) for guard in wanted)
                    under = _narrowed(condition, known, inner)
                    if under is not None:
                        visit(then, under, inner)
                    visit(otherwise, known, inner)
                    return
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
        end, rest = loop.extent, loop.body
        if _all_under(at.guards, rest):
            end = simplify_expr(binary("min", at.never, end), ranges)
            rest = _last_turn(at.guards, loop)
        shifted = substitute(rest, {loop.var: loop.var + turn})
        if loop.kind == "parallel":  # an iteration is much work
            shifted = self.visit(shifted, {**known, loop.var: (0, None)})
        tail = For(loop.var, end - turn, "serial", shifted, loop.annotations)
        whole = simplify_expr(
            binary("max", binary("min", at.surely, loop.extent), const(0, loop.var.dtype)), ranges
        )
        return Let(turn, whole, seq((self.visit(head, known), simplify(tail, known))))


def _narrowed(
    condition: Expr, known: dict[Var, Bounds], loops: Sequence[For]
) -> dict[Var, Bounds] | None:
    """The ranges where the condition holds, of the loops that it alone will cut; None if it never
    holds."""
    own = {n.var for n in loops if n.kind in ("serial", "unrolled") and isinstance(n.extent, Const)}
    found = dict(known)
    for guard in conjuncts(condition):
        form = below_zero(guard, known)
        if form is None or len(form.terms) != 1:
            continue
        ((var, step),) = form.terms.items()
        if not isinstance(var, Var) or var not in own:
            continue
        low, high = found[var]
        assert low is not None and high is not None
        if step > 0:
            high = min(high, (-1 - form.constant) // step)
        else:
            low = max(low, form.constant // -step + 1)
        if low > high:
            return None
        found[var] = low, high
    return found


def _guards_of_task(
    body: Stmt, task: Var, known: dict[Var, Bounds]
) -> tuple[Expr, frozenset[Expr]] | None:
    """A condition under which guards of a task's inner loops hold, and these guards: those of parts
    of the task's number, as where tasks are rows of several matrices, that each iteration of a loop
    tests. No iteration of the loop over tasks parts them."""
    inner: dict[Var, Bounds] = {}
    first: Expr | None = None
    found: set[Expr] = set()

    def visit(s: Stmt, turns: Var | None) -> None:
        nonlocal first
        match s:
            case For():
                inner[s.var] = turn_range(s.extent, {**known, **inner})
                turns = s.var if s.kind == "serial" else turns
            case If(condition) if turns is not None:
                for guard in conjuncts(condition):
                    form = below_zero(guard, {**known, **inner})
                    if form is None or task in form.terms or turns in form.terms:
                        continue
                    if not inner.keys() & set(form.terms):
                        continue
                    top = relax(to_expr(form, task.dtype), 1, inner, known)
                    if top is None or {n for n in walk(top[0]) if isinstance(n, Var)} != {task}:
                        continue
                    surely = simplify_expr(top[0] + (top[1] - 1) < 0, known)
                    if first is None or same_expr(first, surely):
                        first = surely
                        found.add(guard)
        for child in children(s):
            if isinstance(child, Stmt):
                visit(child, turns)

    visit(body, None)
    return None if first is None or isinstance(first, Const) else (first, frozenset(found))


def _is_rare(guard: Expr, loop: For, inner: Sequence[For]) -> bool:
    """Whether a cut for the guard is not worth a copy of the loops inside. Some iterations would
    still test it, and there hoist_guards moves the test out of these loops, whose work dwarfs
    it."""
    used = {n for n in walk(guard) if isinstance(n, Var)}
    dwarfed = any(n.kind == "serial" for n in inner) and not any(n.var in used for n in inner)
    return dwarfed and used != {loop.var}


@dataclass(frozen=True, slots=True)
class _Turns:
    """Guards that hold for all iterations < surely, and fail for all iterations >= never."""

    surely: Expr
    never: Expr
    guards: frozenset[Expr]


def _symbolic_cut(loop: For, ranges: dict[Var, Bounds]) -> _Turns | None:
    """The cut for the first guard from above that the loop can decide, with all guards of the same
    cut."""
    inner: dict[Var, Bounds] = {}
    first: _Turns | None = None
    for n in walk(loop.body):
        match n:
            case For():
                inner[n.var] = turn_range(n.extent, {**ranges, **inner})
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
    form = below_zero(guard, {**ranges, **inner})
    step = 0 if form is None else form.terms.get(loop.var, 0)
    if form is None or step <= 0:
        return None
    dtype = loop.var.dtype
    reached = relax(to_expr(form.without(loop.var), dtype), 1, inner, ranges)
    if reached is None or uses(reached[0], loop.var):
        return None
    if any(isinstance(n, Load) for n in walk(reached[0])):  # iterations may store what others load
        return None
    low, high = reached[0], reached[0] + (reached[1] - 1)
    surely, never = ((const(step - 1, dtype) - least) // step for least in (high, low))
    return _Turns(simplify_expr(surely, ranges), simplify_expr(never, ranges), frozenset((guard,)))


def _all_under(guards: Set[Expr], s: Stmt) -> bool:
    """Whether every store in s is under one of these guards."""
    match s:
        case If(condition, _, None) if guards & set(conjuncts(condition)):
            return True
        case Store() if (kept := where_kept(s)) is not None:
            return _all_under(guards, kept)
        case Store() | Evaluate():
            return False
    return all(_all_under(guards, c) for c in children(s) if isinstance(c, Stmt))


def _last_turn(guards: Set[Expr], loop: For) -> Stmt:
    """for l in vectorized(n): if n*i + l < b: S   =>   for l in range(min(b - n*i, n)): S

    in the body of a loop i, for the guards under which everything in it is: in the iteration after
    the last whole one, some of the lanes run."""
    inside = {n.var for n in walk(loop.body) if isinstance(n, For)}

    def visit(m: Any) -> Any:
        if isinstance(m, For) and m.kind == "vectorized" and isinstance(m.extent, Const):
            for guard in guards:
                form = below_zero(guard, {})
                if form is None or form.terms.get(m.var) != 1:
                    continue
                rest = to_expr(form.without(m.var).times(-1), m.var.dtype)
                alone = not any(n in inside for n in walk(rest))
                if alone and form.terms.get(loop.var, 0) >= int(m.extent):
                    lanes = binary("min", rest, m.extent)
                    return For(m.var, lanes, "serial", _without({guard}, m.body), m.annotations)
        return rebuild(m, visit) if isinstance(m, Stmt) else m

    done: Stmt = visit(loop.body)
    return done


def _without(guards: Set[Expr], s: Stmt) -> Stmt:
    """s, given that these guards hold."""

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
    """n such that `guard` holds for all var < n (a bound from above) or for all var >= n (from
    below), whatever the other variables are; None for other guards."""
    form = below_zero(guard, known)
    if form is None or var not in form.terms:
        return None
    step, high = form.terms[var], bounds(form.without(var), known)[1]
    if high is None:
        return None
    return -(high // step) if step > 0 else high // -step + 1
