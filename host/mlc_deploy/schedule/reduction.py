"""Primitives on reductions."""

from __future__ import annotations

from ..ir import Binary, Block, Expr, PrimFunc, Stmt, Var, all_of, seq, substitute, with_fields
from ..ir.build import loop_nest
from ..ir.names import block_names_of, names_of
from .tree import (
    block_at,
    bound_to,
    find_block,
    find_loop,
    is_reduction,
    loop_at,
    loops_of,
    refreshed,
    refuse,
    replace,
    vars_in,
)


def decompose_reduction(func: PrimFunc, block: str, loop: str) -> tuple[PrimFunc, str]:
    """loop: { init+update }   =>   { init loops }; loop: { update }

    The init becomes a block of its own, `<block>_init`, before the loop, over the block's spatial
    iterations. The update keeps the name.
    """
    primitive = "decompose_reduction"
    path = find_block(func, block, primitive)
    target = block_at(path)
    position = find_loop(func, loop, primitive)
    outer = loop_at(position)
    if not is_reduction(func, target):
        refuse(primitive, f"block '{block}' is not a reduction with an init", target)
    if outer not in path:
        refuse(primitive, f"loop '{loop}' is not around block '{block}'", outer)
    reduced = bound_to(target, "reduce")
    for above in loops_of(position)[:-1]:
        if above.var in reduced:
            refuse(
                primitive,
                f"loop '{above.name}', outside loop '{loop}', reduces too: its second turn would "
                "start over",
                above,
                f"decompose at loop '{above.name}'",
            )
    inner = loops_of(path)[len(loops_of(position)) - 1 :]
    spatial = [i for i in target.iters if i.kind == "spatial"]
    guards = [c for c in _conditions(target) if not vars_in(c) & reduced]
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
    assert target.init is not None
    init = Block(
        block_names_of(func).fresh(f"{block}_init"),
        tuple(
            with_fields(i, var=inside[i.var], binding=substitute(i.binding, outside))
            for i in spatial
        ),
        (),
        (),
        substitute(target.init, dict(inside)),
        predicate=all_of(*(substitute(c, outside) for c in guards)),
    )
    init = refreshed(init)
    update = refreshed(with_fields(target, init=None))
    func = replace(func, target, update)
    outer = loop_at(find_loop(func, loop, primitive))
    nest: Stmt = loop_nest(loops, init)
    return replace(func, outer, seq([nest, outer])), init.name


def _conditions(block: Block) -> list[Expr]:
    """The conditions that a block's predicate is the conjunction of."""
    parts: list[Expr] = []
    stack = [block.predicate]
    while stack:
        e = stack.pop()
        if isinstance(e, Binary) and e.op == "and":
            stack.extend((e.b, e.a))
        else:
            parts.append(e)
    return parts
