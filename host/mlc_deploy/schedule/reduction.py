"""Primitives on reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..arith import loop_ranges, simplify_expr
from ..ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
    all_of,
    binary,
    const,
    if_then_else,
    is_const,
    load,
    same_expr,
    seq,
    substitute,
    with_fields,
)
from ..ir.build import loop_nest, stmts_of
from ..ir.names import Names, block_names_of, names_of
from .coverage import conditions, turns_disjoint
from .tree import (
    block_at,
    blocks_in,
    bound_to,
    find_block,
    find_loop,
    find_outermost,
    is_reduction,
    loop_at,
    loops_of,
    refreshed,
    refuse,
    replace,
    require_leaf,
    root_block,
    vars_in,
    with_allocs,
)


def decompose_reduction(func: PrimFunc, block: str, loop: str) -> tuple[PrimFunc, str]:
    """loop: { init+update }   =>   { init loops }; loop: { update }

    The init becomes a block of its own, `<block>_init`, before the loop, over the block's spatial
    iterations. The update keeps the name.
    """
    primitive = "decompose_reduction"
    path = find_outermost(func, block, primitive)
    target = block_at(path)
    position = find_loop(func, loop, primitive)
    outer = loop_at(position)
    if not is_reduction(func, target):
        refuse(primitive, f"block '{block}' is not a reduction with an init", target)
    if outer not in path:
        refuse(primitive, f"loop '{loop}' is not around block '{block}'", outer)
    _require_first_step(primitive, target)
    reduced = bound_to(target, "reduce")
    for above in loops_of(position)[:-1]:
        if above.var in reduced:
            refuse(
                primitive,
                f"loop '{above.name}', outside loop '{loop}', reduces too: its second iteration "
                "would start over",
                above,
                f"decompose at loop '{above.name}'",
            )
    inner = loops_of(path)[len(loops_of(position)) - 1 :]
    for turning in inner:
        if not turns_disjoint(turning, target, ("spatial", "reduce")):
            refuse(
                primitive,
                f"iterations of loop '{turning.name}' compute the same elements of block '{block}' "
                "again, each from its init on",
                turning,
                "a loop further inside",
            )
    moving = bound_to(target, "spatial")
    for condition in conditions(target):
        if vars_in(condition) & reduced & moving:
            refuse(
                primitive,
                f"loop '{min(v.name for v in vars_in(condition) & reduced)}' runs through results "
                "and reduction at once, under a guard",
                target,
                f"{primitive} before these loops are fused",
            )
    guards = [c for c in conditions(target) if not vars_in(c) & reduced]
    nest, name = init_nest(func, target, inner, guards)
    update = refreshed(with_fields(target, init=None))
    func = replace(func, target, update)
    outer = loop_at(find_loop(func, loop, primitive))
    return replace(func, outer, seq([nest, outer])), name


def init_nest(
    func: PrimFunc, block: Block, inner: Sequence[For], guards: Sequence[Expr] = ()
) -> tuple[Stmt, str]:
    """The init of a block as a block of its own, `<block>_init`, and its name: over the spatial
    iterations, in copies of those `inner` loops that they and the guards use."""
    assert block.init is not None
    spatial = [i for i in block.iters if i.kind == "spatial"]
    used = {v for part in (*(i.binding for i in spatial), *guards) for v in vars_in(part)}
    names = names_of(func)
    loops: list[tuple[Var, Expr]] = []
    outside: dict[Var, Expr] = {}
    for old in inner:
        if old.var in used:
            var = Var(names.fresh(f"{old.name}_init"), old.var.dtype)
            outside[old.var] = var
            loops.append((var, old.extent))
    inside = {i.var: Var(names.fresh(f"{i.var.name}_init"), i.var.dtype) for i in spatial}
    iters = tuple(
        with_fields(i, var=inside[i.var], binding=substitute(i.binding, outside)) for i in spatial
    )
    unit = (IterVar(Var(names.fresh("vu")), const(1), "spatial", const(0)),)
    init = Block(
        block_names_of(func).fresh(f"{block.name}_init"),
        iters or unit,  # a block without iterations is a root
        (),
        (),
        substitute(block.init, dict(inside)),
        predicate=all_of(*(substitute(c, outside) for c in guards)),
    )
    return loop_nest(loops, refreshed(init)), init.name


def rfactor(func: PrimFunc, loop: str, factor_axis: int) -> tuple[PrimFunc, str]:
    """for s, k, r: B[s] += e
    =>   for s, k, r: B_rf[.., r, ..] += e;  for s, r: B[s] += B_rf[.., r, ..]

    The loop r over a part of the reduction becomes a spatial loop of a block of its own,
    `<block>_rf`, whose buffer has r as dimension number factor_axis; the block itself then reduces
    over r alone (Suriana et al., "Parallel associative reductions in Halide", 2017).

    Where a guard may skip all steps of a part, the part must begin all the same: the guard leaves
    the predicate, and a step that it skips keeps the part as it is.
    """
    primitive = "rfactor"
    path = find_loop(func, loop, primitive)
    outer = loop_at(path)
    below = [b for b in blocks_in(outer.body) if outer.var in bound_to(b, "reduce")]
    if len(below) != 1:
        refuse(primitive, f"loop '{loop}' does not carry the reduction of one block", outer)
    target = below[0]
    if not is_reduction(func, target):
        refuse(
            primitive,
            f"block '{target.name}' is not a reduction with an init",
            target,
            "rfactor before decompose_reduction",
        )
    require_leaf(primitive, target)
    combine, value, place = _combiner(primitive, target)
    nest = loops_of(find_block(func, target.name, primitive))
    _require_parts(primitive, target, nest)
    if any(b is not target for b in blocks_in(nest[0])):
        refuse(primitive, f"other blocks share loops with block '{target.name}'", nest[0])
    skipping = _skipping_parts(target, outer, nest)
    (out,) = {w.buffer for w in target.writes}
    if not 0 <= factor_axis <= out.ndim:
        refuse(
            primitive, f"factor_axis {factor_axis} of a buffer with {out.ndim} dimensions", target
        )
    if not isinstance(outer.extent, Const):
        refuse(primitive, f"loop '{loop}' has extent {outer.extent}, no constant", outer)
    names = names_of(func)
    shape = list(out.shape)
    shape.insert(factor_axis, int(outer.extent))
    partial = out.replace(name=names.fresh(f"{out.name}_rf"), shape=tuple(shape), strides=None)
    extents = {o.var: o.extent for o in nest}
    rf = _partial_block(
        target, outer, extents, partial, factor_axis, place, combine, value, skipping, names
    )
    rf = with_fields(rf, name=block_names_of(func).fresh(f"{target.name}_rf"))
    final = _final_nest(target, outer, partial, out, factor_axis, place, combine, names)
    func = replace(func, target, rf)
    tops = stmts_of(root_block(func).body)
    top = next(s for s in tops if any(b is rf for b in blocks_in(s)))
    return with_allocs(replace(func, top, seq([top, final])), add=[partial]), rf.name


def _require_parts(primitive: str, block: Block, nest: Sequence[For]) -> None:
    """Refuses unless each loop runs through results or through the reduction, and every step is
    taken once: each part then has one first step, with which it begins."""
    _require_first_step(primitive, block)
    mixed = bound_to(block, "spatial") & bound_to(block, "reduce")
    for loop in nest:
        if loop.var in mixed:
            refuse(
                primitive,
                f"loop '{loop.name}' runs through results and reduction of block '{block.name}' at "
                "once",
                loop,
                f"{primitive} before these loops are fused",
            )
        if not turns_disjoint(loop, block, ("spatial", "reduce")):
            refuse(
                primitive,
                f"iterations of loop '{loop.name}' may take a step of block '{block.name}' again",
                loop,
            )


def _require_first_step(primitive: str, block: Block) -> None:
    """Refuses a reduction whose init does not run in the first iterations of its loops."""
    for i in block.iters:
        first = substitute(i.binding, {v: const(0, v.dtype) for v in vars_in(i.binding)})
        if i.kind == "reduce" and not is_const(simplify_expr(first, {}), 0):
            refuse(
                primitive,
                f"block '{block.name}' does not begin in the first iteration of its loops: "
                f"'{i.var.name}' is {i.binding}",
                block,
            )


def _combiner(primitive: str, block: Block) -> tuple[str, Expr, tuple[Expr, ...]]:
    """(operator, value, indices) of a body `B[i] = B[i] op value`."""
    match block.body:
        case Store(buffer, indices, Binary(op, Load(same, at), value)) if (
            same is buffer
            and op in ("+", "*", "min", "max")
            and all(same_expr(a, b) for a, b in zip(indices, at, strict=True))
        ):
            return op, value, indices
    refuse(primitive, f"block '{block.name}' is not of the form B[i] = B[i] op value", block)


def _skipping_parts(block: Block, outer: For, nest: Sequence[For]) -> list[Expr]:
    """The conditions of the predicate that may fail in a part's first step, with which it begins.
    Refuses those that depend on results too."""
    reduced = bound_to(block, "reduce")
    first = {v: const(0, v.dtype) for v in reduced - {outer.var}}
    ranges = loop_ranges(nest)
    skipping = [
        condition
        for condition in conditions(block)
        if outer.var in vars_in(condition)
        and not is_const(simplify_expr(substitute(condition, first), ranges), True)
    ]
    for condition in skipping:
        if vars_in(condition) & bound_to(block, "spatial"):
            refuse(
                "rfactor",
                f"block '{block.name}' skips whole iterations of loop '{outer.name}' for some "
                f"results: {condition}",
                block,
                "split by a factor that divides the extent",
            )
    return skipping


def _partial_block(
    block: Block,
    outer: For,
    extents: Mapping[Var, Expr],
    partial: Buffer,
    axis: int,
    place: tuple[Expr, ...],
    combine: str,
    value: Expr,
    skipping: Sequence[Expr],
    names: Names,
) -> Block:
    """The block that reduces over everything but the loop. A step in which a condition of
    `skipping` fails keeps the part."""
    iters: list[IterVar] = []
    values: dict[Var, Expr] = {}
    loops: dict[Var, IterVar] = {}
    part = IterVar(Var(names.fresh(f"v_{outer.name}")), outer.extent, "spatial", outer.var)
    loops[outer.var] = part
    for i in block.iters:
        if outer.var not in vars_in(i.binding):
            iters.append(i)
            continue
        inner: dict[Var, Expr] = {}
        for v in sorted(vars_in(i.binding), key=lambda v: v.name):
            if v not in loops:
                fresh = Var(names.fresh(f"v_{v.name}"))
                loops[v] = IterVar(fresh, extents[v], "reduce", v)
            inner[v] = loops[v].var
        values[i.var] = substitute(i.binding, inner)
    at = list(place)
    at.insert(axis, part.var)
    holds = substitute(all_of(*skipping), {v: i.var for v, i in loops.items()})
    kept = load(partial, at)
    combined = binary(combine, kept, substitute(value, values))
    store = Store(partial, tuple(at), if_then_else(holds, combined, kept))
    init = Store(partial, tuple(at), _neutral(block, combine))
    left = all_of(*(c for c in conditions(block) if all(c is not s for s in skipping)))
    return refreshed(
        with_fields(block, iters=(*iters, *loops.values()), body=store, init=init, predicate=left)
    )


def _neutral(block: Block, combine: str) -> Expr:
    """The initial value of each part. The block's own init counts once: for "+" and "*" it stays in
    the block that takes the parts together. For "min" and "max" it may count any number of
    times."""
    begin = _init(block)
    match combine:
        case "+":
            return const(0, begin.dtype)
        case "*":
            return const(1, begin.dtype)
    return begin


def _init(block: Block) -> Expr:
    assert isinstance(block.init, Store)
    return block.init.value


def _final_nest(
    block: Block,
    outer: For,
    partial: Buffer,
    out: Buffer,
    axis: int,
    place: tuple[Expr, ...],
    combine: str,
    names: Names,
) -> Stmt:
    """for s, r: B[s] = B[s] op B_rf[.., r, ..]"""
    loops: list[tuple[Var, Expr]] = []
    iters: list[IterVar] = []
    swap: dict[Var, Expr] = {}
    for i in block.iters:
        if i.kind == "spatial":
            loop = Var(names.fresh(f"ax{len(loops)}"))
            var = Var(names.fresh(i.var.name))
            loops.append((loop, i.extent))
            iters.append(IterVar(var, i.extent, "spatial", loop))
            swap[i.var] = var
    loop, var = Var(names.fresh(outer.name)), Var(names.fresh(f"v_{outer.name}"))
    loops.append((loop, outer.extent))
    iters.append(IterVar(var, outer.extent, "reduce", loop))
    here = tuple(substitute(e, swap) for e in place)
    at = list(here)
    at.insert(axis, var)
    store = Store(out, here, binary(combine, load(out, here), load(partial, at)))
    init = Store(out, here, substitute(_init(block), swap))
    final = Block(block.name, tuple(iters), (), (), store, init)
    return loop_nest(loops, refreshed(final))
