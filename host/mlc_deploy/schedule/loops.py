"""Primitives on loops: split, fuse, reorder, and the kinds of loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

from ..arith import expr_bounds, simplify_expr, turn_range
from ..ir import (
    Block,
    Const,
    Expr,
    For,
    Load,
    PrimFunc,
    Ramp,
    Stmt,
    Var,
    all_of,
    const,
    expr,
    is_const,
    rebuild,
    same_expr,
    statements,
    substitute,
    walk,
    with_fields,
)
from ..ir.build import compare, is_root
from ..ir.dtypes import value_range
from ..ir.names import names_of
from ..ir.nodes import ForKind
from .coverage import turns_disjoint, turns_share, turns_write_apart
from .tree import (
    begins_what_it_updates,
    blocks_in,
    bound_to,
    find_loop,
    find_node,
    is_complete,
    is_reduction,
    loop_at,
    loops_of,
    ranges_at,
    refuse,
    replace,
    root_block,
    vars_in,
)


def guard_blocks(s: Stmt, condition: Expr) -> Stmt:
    """s with `condition` added to the predicate of its outermost blocks, before what reads: that
    may read where the condition allows it."""
    if is_const(condition, True):
        return s

    def visit(m: Any) -> Any:
        if isinstance(m, Block) and not is_root(m):
            reads = any(isinstance(n, Load) for n in walk(m.predicate))
            parts = (condition, m.predicate) if reads else (m.predicate, condition)
            return with_fields(m, predicate=all_of(*parts))
        return rebuild(m, visit) if isinstance(m, Stmt) else m

    guarded: Stmt = visit(s)
    return guarded


def split(
    func: PrimFunc,
    loop: str,
    factors: Sequence[int | Expr | None],
    preserve_unit_iters: bool = True,
    disable_predication: bool = False,
) -> tuple[PrimFunc, list[str]]:
    """for i in range(n): S
    =>   for i_0 in range(ceil(n / f)): for i_1 in range(f): S[i := i_0*f + i_1]

    Guarded by `i_0*f + i_1 < n` where the factors do not divide n. One factor may be None: it is
    inferred. preserve_unit_iters False leaves out loops of one iteration; disable_predication
    promises that the factors divide n, which is checked where n is constant. Raises ScheduleError
    for factors that do not cover n."""
    path = find_loop(func, loop, "split")
    target = loop_at(path)
    _require_serial("split", target)
    given = list(factors)
    if len(given) < 2 or given.count(None) > 1:
        refuse(
            "split", f"loop '{loop}' needs two factors or more, at most one of them None", target
        )
    for factor in given:
        if isinstance(factor, int) and factor < 1:
            refuse("split", f"factor {factor} of loop '{loop}' is not positive", target)
    sizes: list[Expr] = [expr(f) if f is not None else const(1) for f in given]
    ranges = ranges_at(path)
    others = expr(1)
    for size in sizes:
        others = others * size
    if None in given:
        inferred = simplify_expr((target.extent + others - 1) // others, ranges)
        sizes[given.index(None)] = inferred
        others = simplify_expr(others * inferred, ranges)
    lacking = 0 if None in given else expr_bounds(target.extent - others, ranges)[1]
    if lacking is None or lacking > 0:
        refuse(
            "split",
            f"factors {[str(f) for f in given]} of loop '{loop}' do not cover its extent "
            f"{target.extent}",
            target,
            "leave one factor None and it is inferred",
        )
    names = names_of(func)
    dtype = target.var.dtype
    inner = [Var(names.fresh(f"{loop}_{n}"), dtype) for n in range(len(sizes))]
    index: Expr = const(0, dtype)
    for v, size in zip(inner, sizes, strict=True):
        index = index * size + v
    for v, size in zip(inner, sizes, strict=True):
        ranges[v] = turn_range(size, ranges)
    # loops of one iteration stay in the index: the number of loops must not depend on the factors
    units = {v for v, size in zip(inner, sizes, strict=True) if is_const(size, 1)}
    index = simplify_expr(index, {v: r for v, r in ranges.items() if v not in units})
    guard = simplify_expr(compare("<", index, target.extent), ranges)
    if isinstance(target.extent, Const) and prod(int(s) for s in sizes) == target.extent.value:  # type: ignore[call-overload]
        guard = const(True)
    if disable_predication:
        if isinstance(target.extent, Const) and not is_const(guard, True):
            refuse("split", f"without a guard the factors must divide {target.extent}", target)
        guard = const(True)
    body = guard_blocks(substitute(target.body, {target.var: index}), guard)
    nest = list(zip(inner, sizes, strict=True))
    kept = nest
    if not preserve_unit_iters:
        kept = [(v, n) for v, n in nest if not is_const(n, 1)] or nest[:1]
        zero = const(0, dtype)
        body = substitute(body, dict.fromkeys(set(inner) - {v for v, _ in kept}, zero))
    for v, size in reversed(kept):
        body = For(v, size, "serial", body)
    return replace(func, target, body), [v.name for v, _ in kept]


def fuse(func: PrimFunc, loops: Sequence[str]) -> tuple[PrimFunc, str]:
    """for i in range(n): for j in range(m): S
    =>   for i_j_fused in range(n*m): S[i := i_j_fused // m, j := i_j_fused % m]

    Loops of one iteration become 0, and the others are fused as if they were alone. Otherwise a
    useless remainder would stay, and after a split that does not divide the iterations only the
    guard would show that it is useless."""
    if len(loops) < 2:
        refuse("fuse", "two loops or more are needed")
    path = find_loop(func, loops[0], "fuse")
    nest = [loop_at(path)]
    for name in loops[1:]:
        find_loop(func, name, "fuse")
        inner = nest[-1].body
        if not (isinstance(inner, For) and inner.var.name == name):
            refuse(
                "fuse",
                f"loop '{name}' is not the only statement right inside loop '{nest[-1].name}'",
                nest[-1],
                "reorder them next to each other first",
            )
        nest.append(inner)
    for n, inner in enumerate(nest):
        _require_serial("fuse", inner)
        outer = vars_in(inner.extent) & {o.var for o in nest[:n]}
        if outer:
            refuse("fuse", f"the extent of loop '{inner.name}' depends on another loop", inner)
    turns = prod(int(o.extent) for o in nest if isinstance(o.extent, Const))
    if turns > value_range(nest[0].var.dtype)[1]:
        refuse("fuse", f"{turns} iterations are more than {nest[0].var.dtype} counts", nest[0])
    var = Var(names_of(func).fresh("_".join([*loops, "fused"])), nest[0].var.dtype)
    values: dict[Var, Expr] = {o.var: const(0, o.var.dtype) for o in nest}
    first, *others = [o for o in nest if not is_const(o.extent, 1)] or nest[:1]
    rest: Expr = var
    for inner in reversed(others):
        values[inner.var] = rest % inner.extent
        rest = rest // inner.extent
    values[first.var] = rest
    extent: Expr = const(1, var.dtype)
    for inner in nest:
        extent = extent * inner.extent
    body = substitute(nest[-1].body, values)
    return replace(func, nest[0], For(var, extent, "serial", body)), var.name


def reorder(func: PrimFunc, order: Sequence[str]) -> PrimFunc:
    """The loops in the given order, outermost first; loops between them stay where they are."""
    if len(set(order)) != len(order):
        refuse("reorder", f"a loop occurs twice in {list(order)}")
    if len(order) < 2:
        return func
    paths = [find_loop(func, name, "reorder") for name in order]
    deepest = max(paths, key=len)
    chain = loops_of(deepest)
    wanted = {name: loop_at(path) for name, path in zip(order, paths, strict=True)}
    for name, loop in wanted.items():
        if loop not in chain:
            refuse("reorder", f"loop '{name}' is not around loop '{chain[-1].name}'", loop)
    first = min(chain.index(loop) for loop in wanted.values())
    nest = chain[first:]
    for outer, inner in pairwise(nest):
        if outer.body is not inner:
            refuse(
                "reorder",
                f"other statements are between loop '{outer.name}' and loop '{inner.name}'",
                outer,
            )
    for block in blocks_in(nest[-1].body):
        require_free_order("reorder", func, block)
    for loop in nest:
        _require_no_shared_turns("reorder", func, loop)
    sequence = iter(order)
    permuted = [wanted[next(sequence)] if loop in wanted.values() else loop for loop in nest]
    for n, loop in enumerate(permuted):
        inside = {other.var for other in permuted[n + 1 :]}
        if vars_in(loop.extent) & inside:
            refuse("reorder", f"the extent of loop '{loop.name}' depends on a loop inside it", loop)
    for block in blocks_in(nest[-1].body):
        if block.init is not None:
            _require_init_first("reorder", block, nest, permuted)
    body = nest[-1].body
    for loop in reversed(permuted):
        body = with_fields(loop, body=body)
    return replace(func, nest[0], body)


def require_free_order(primitive: str, func: PrimFunc, block: Block) -> None:
    """Refuses unless a block's instances may run in any order: it is complete, a reduction, or its
    update."""
    if is_complete(func, block) or is_reduction(func, block):
        return
    if not begins_what_it_updates(block):
        refuse(primitive, f"the init of block '{block.name}' is of other elements than its steps",
               block)  # fmt: skip
    reduced = any(i.kind == "reduce" for i in block.iters)
    own = {w.buffer for w in block.writes}
    update = reduced and all(r in block.writes or r.buffer not in own for r in block.reads)
    if not (update or not any(r.buffer in own for r in block.reads) or _same_element(block)):
        refuse(primitive, f"block '{block.name}' reads other elements of what it writes", block)


def _require_init_first(
    primitive: str, block: Block, nest: Sequence[For], permuted: Sequence[For]
) -> None:
    """Refuses unless each element still begins with its init in the other order: loops through
    results and reduction at once keep their order, and no iteration computes an element again."""
    mixed = bound_to(block, "spatial") & bound_to(block, "reduce")
    if [o for o in nest if o.var in mixed] != [o for o in permuted if o.var in mixed]:
        refuse(
            primitive,
            f"the loops run through results and reduction of block '{block.name}' at once",
            block,
            "reorder before they are fused",
        )
    for loop in nest:
        if not turns_disjoint(loop, block, ("spatial", "reduce")):
            refuse(
                primitive,
                f"iterations of loop '{loop.name}' compute the same elements of block "
                f"'{block.name}' again, each from its init on",
                loop,
            )


def _same_element(block: Block) -> bool:
    """Whether every read of an own output is of the very element that is written."""
    return all(
        any(
            len(r.minimum) == len(w.minimum)
            and all(map(same_expr, (*r.minimum, *r.extent), (*w.minimum, *w.extent)))
            for w in block.writes
            if w.buffer is r.buffer
        )
        for r in block.reads
        if any(w.buffer is r.buffer for w in block.writes)
    )


def set_kind(func: PrimFunc, loop: str, kind: ForKind) -> PrimFunc:
    """Marks a loop parallel, vectorized or unrolled (or serial again)."""
    primitive = {"vectorized": "vectorize", "unrolled": "unroll"}.get(kind, kind)
    path = find_loop(func, loop, primitive)
    target = loop_at(path)
    if kind in ("vectorized", "unrolled") and not isinstance(target.extent, Const):
        refuse(
            primitive,
            f"loop '{loop}' has extent {target.extent}, which is not a constant",
            target,
            f"split '{loop}' by a constant first, then {primitive} its inner loop",
        )
    if kind in ("parallel", "vectorized"):
        require_independent(primitive, func, target, kind)
    if kind == "vectorized":
        inner = (s for s in statements(target.body) if isinstance(s, For))
        if any(s.kind == "vectorized" for s in inner):
            refuse(primitive, f"loop '{loop}' holds a vectorized loop already", target)
        if any(isinstance(n, Ramp) for n in walk(target.body)):
            refuse(primitive, f"loop '{loop}' holds a tensorized block, made of vectors", target)
    return replace(func, target, with_fields(target, kind=kind))


def require_independent(
    primitive: str, func: PrimFunc, target: For, kind: ForKind | None = None
) -> None:
    """Refuses unless iterations of the loop may run at once: no block below reduces over it, or
    writes what another iteration writes or reads. Buffers that live within one iteration do not
    count."""
    if is_const(target.extent, 1):
        return
    _require_no_shared_turns(primitive, func, target)
    for block in blocks_in(target.body):
        require_free_order(primitive, func, block)
        if target.var in bound_to(block, "reduce"):
            refuse(
                primitive,
                f"loop '{target.name}' carries the reduction of block '{block.name}'",
                target,
                f"{primitive} a spatial loop, or rfactor the reduction first",
            )
        alone = all(_private(func, target, w.buffer) for w in block.writes)
        if (kind or target.kind) == "vectorized":  # lanes share what is private to an iteration
            alone = alone and is_complete(func, block)
        if not alone and not turns_write_apart(target, block):
            refuse(
                primitive,
                f"iterations of loop '{target.name}' write the same elements in block "
                f"'{block.name}'",
                target,
            )


def _require_no_shared_turns(primitive: str, func: PrimFunc, target: For) -> None:
    """Refuses where a block uses what another block writes in other iterations of the loop."""
    blocks = list(blocks_in(target.body))
    for writer in blocks:
        if all(_private(func, target, w.buffer) for w in writer.writes):
            continue
        for other in blocks:
            shared = None if other is writer else turns_share(target, writer, other)
            if shared is not None and not _private(func, target, shared):
                refuse(
                    primitive,
                    f"block '{other.name}' uses elements of '{shared.name}' that block "
                    f"'{writer.name}' writes in other iterations of loop '{target.name}'",
                    target,
                )


def _private(func: PrimFunc, target: For, buffer: Any) -> bool:
    """Whether all uses of a buffer are within the loop, so that each iteration has its own."""
    if buffer not in root_block(func).allocs:
        return False
    inside = set(blocks_in(target.body))
    users = [
        b for b in blocks_in(func.body) if any(r.buffer is buffer for r in (*b.reads, *b.writes))
    ]
    return all(b in inside for b in users)


def add_unit_loop(func: PrimFunc, at: str) -> tuple[PrimFunc, str]:
    """S   =>   for u in range(1): S, around a block or a loop."""
    path = find_node(func, at, "add_unit_loop")
    var = Var(names_of(func).fresh("u"))
    return replace(func, path[-1], For(var, const(1), "serial", path[-1])), var.name


def _require_serial(primitive: str, loop: For) -> None:
    if loop.kind != "serial":
        refuse(
            primitive,
            f"loop '{loop.name}' is {loop.kind} already",
            loop,
            f"{primitive} it before it is made {loop.kind}",
        )
