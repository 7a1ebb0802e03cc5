"""Unrolled loops become sequences; which loops are unrolled without being asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..errors import LowerError
from ..ir import (
    Buffer,
    Const,
    Expr,
    For,
    Load,
    Node,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
    bottom_up,
    children,
    const,
    once,
    rebuild,
    seq,
    statements,
    walk,
    with_fields,
)
from ..ir.pragmas import AUTO_UNROLL, DEBUG_SKIP, UNROLL_EXPLICIT, defect
from ..ir.printer import loop_header
from ..passes.context import option, optional, required
from .bodies import with_body


@optional(level=1)
def unroll_loops(func: PrimFunc) -> PrimFunc:
    """for i in unrolled(n): S   =>   S[i := 0]; …; S[i := n-1]

    Equal expressions of several copies are one node, so passes look at each once. Raises LowerError
    for extents that are not constant, or would make more copies of a statement than the option
    "lower.unroll_limit".
    """
    most = option("lower.unroll_limit")
    unrolled = {n.var for n in statements(func.body) if isinstance(n, For) and n.kind == "unrolled"}
    if not unrolled:
        return func
    used: dict[Node, tuple[Var, ...]] = {}  # the unrolled variables in an expression
    made: dict[tuple[Any, ...], Expr] = {}  # copies, by expression and values of its variables
    turn = cache(const)  # one node for each value

    def variables(e: Node) -> tuple[Var, ...]:
        for n in bottom_up(e, used):
            if isinstance(n, Var):
                used[n] = (n,) if n in unrolled else ()
            else:
                used[n] = tuple(dict.fromkeys(v for c in children(n) for v in used[c]))
        return used[e]

    def expanded(s: Stmt, values: Mapping[Var, Const], copies: int) -> Stmt:
        def copied(e: Expr) -> Expr:
            inside = used.get(e)
            if inside is None:
                inside = variables(e)
            if not inside:
                return e
            key = e, *map(values.get, inside)
            found = made.get(key)
            if found is None:
                found = values.get(e, e) if isinstance(e, Var) else rebuild(e, shared)
                made[key] = found
            return found

        shared = once(copied)

        def visit(m: Any) -> Any:
            if isinstance(m, Expr):
                return shared(m)
            if isinstance(m, For) and m.kind == "unrolled":
                turns = _turns(m, copies, most)
                each = [{**values, m.var: turn(n, m.var.dtype)} for n in range(turns)]
                return seq([expanded(m.body, now, copies * turns) for now in each])
            return rebuild(m, visit)

        done: Stmt = visit(s)
        return done

    return with_body(func, expanded(func.body, {}, 1))


def _turns(loop: For, copies: int, most: int) -> int:
    if not isinstance(loop.extent, Const):
        raise LowerError(
            f"unroll: loop '{loop.name}' has extent {loop.extent}, which is not a constant",
            where=loop_header(loop),
            mend=f"split '{loop.name}' by a constant first, then unroll its inner loop",
        )
    turns = int(loop.extent)
    if copies * turns > most:
        raise LowerError(
            f"unroll: loop '{loop.name}' would make {copies * turns} copies of its body",
            where=loop_header(loop),
            mend="unroll fewer loops around each other",
        )
    return turns


@optional(level=1)
def unroll_registers(func: PrimFunc) -> PrimFunc:
    """for i in range(4): local[i] = …   =>   for i in unrolled(4): local[i] = …

    LLVM keeps a local buffer in registers only if every index into it is a constant. So the loops
    that index one are unrolled, all or none. They may make at most "lower.auto_unroll" copies of a
    statement, and at most "lower.unroll_limit" together with the loops inside that are unrolled
    anyway.
    """
    most: int = option("lower.auto_unroll")
    limit: int = option("lower.unroll_limit")

    def fits(loops: set[For]) -> bool:
        at_them, inside = _copies(func.body, loops)
        return at_them <= most and inside <= limit

    loops: dict[Var, list[For]] = {}
    indexing: dict[Buffer, set[Var]] = {}
    by_data: set[Buffer] = set()
    for n in walk(func.body):
        if isinstance(n, For):
            loops.setdefault(n.var, []).append(n)
        elif isinstance(n, (Load, Store)) and n.buffer.scope == "local":
            inside = [m for i in n.indices for m in walk(i)]
            found = indexing.setdefault(n.buffer, set())
            found.update(m for m in inside if isinstance(m, Var))
            if any(isinstance(m, Load) for m in inside):
                by_data.add(n.buffer)
    chosen: set[For] = set()
    for buffer, variables in indexing.items():
        if buffer in by_data:
            continue
        serial = {n for v in variables for n in loops.get(v, ()) if n.kind == "serial"}
        others = [n for v in variables for n in loops.get(v, ()) if n.kind == "parallel"]
        known = all(v in loops for v in variables) and not others
        if serial and known and fits(chosen | serial):
            chosen |= serial
    if not chosen:
        return func

    def visit(m: Any) -> Any:
        if isinstance(m, For) and m in chosen:
            return For(m.var, m.extent, "unrolled", visit(m.body), m.annotations)
        return rebuild(m, visit) if isinstance(m, Stmt) else m

    return with_body(func, visit(func.body))


@required
def unroll_as_asked(func: PrimFunc) -> PrimFunc:
    """for i (auto_unroll_max_step 16): for j in range(4): S   =>   … for j in unrolled(4): S

    The pragma holds for its loop and the loops inside. Each is unrolled, innermost first, if its
    iterations make at most that many statements, and at most "lower.unroll_limit". Where the pragma
    unroll_explicit is False they stay loops, which LLVM or the C compiler may unroll.
    debug_skip_region drops its loop. Raises LowerError for an unknown pragma.
    """
    asked = [s for s in statements(func.body) if isinstance(s, For) and s.annotations]
    for loop in asked:
        for key, value in loop.annotations.items():
            why, mend = defect(key, value)
            if why:
                raise LowerError(why, where=loop_header(loop), mend=mend)
    if not any(key in loop.annotations for loop in asked for key in (AUTO_UNROLL, DEBUG_SKIP)):
        return func
    limit = option("lower.unroll_limit")

    def visit(m: Stmt, most: int, explicit: bool) -> tuple[Stmt, int]:
        """(m with loops unrolled, how many statements it is then)."""
        if not isinstance(m, For):
            counts: list[int] = []

            def inner(child: Any) -> Any:
                if not isinstance(child, Stmt):
                    return child
                made, count = visit(child, most, explicit)
                counts.append(count)
                return made

            made = rebuild(m, inner)
            return made, sum(counts) if counts else 1
        if m.annotations.get(DEBUG_SKIP):
            return Seq(()), 0
        most = min(m.annotations.get(AUTO_UNROLL, most), limit)
        explicit = bool(m.annotations.get(UNROLL_EXPLICIT, explicit))
        body, count = visit(m.body, most, explicit)
        if isinstance(m.extent, Const):
            count *= int(m.extent)
            if m.kind == "serial" and explicit and count <= most:
                return with_fields(m, kind="unrolled", body=body), count
        elif most:
            count = most + 1  # an unknown number of iterations exceeds every limit
        return with_body(m, body), count

    return with_body(func, visit(func.body, 0, True)[0])


def _copies(s: Stmt, chosen: set[For]) -> tuple[int, int]:
    """(the most copies of a chosen loop's body, the most copies of a statement in one), once these
    loops and those of kind "unrolled" are unrolled. A symbolic extent exceeds every limit."""
    at_them, inside = 1, 1

    def visit(m: Stmt, copies: int, within: bool) -> None:
        nonlocal at_them, inside
        if isinstance(m, For) and m in chosen:
            copies *= int(m.extent) if isinstance(m.extent, Const) else 1 << 30
            at_them, within = max(at_them, copies), True
        elif isinstance(m, For) and m.kind == "unrolled" and isinstance(m.extent, Const):
            copies *= int(m.extent)
        inside = max(inside, copies) if within else inside
        for child in children(m):
            if isinstance(child, Stmt):
                visit(child, copies, within)

    visit(s, 1, within=False)
    return at_them, inside
