"""blockize: the loops around a block become one block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..arith import Linear, linear, to_expr
from ..ir import Block, Const, Expr, For, IterVar, PrimFunc, Stmt, Var, const, is_const, with_fields
from ..ir.names import block_names_of, names_of
from .reduction import init_nest
from .tree import (
    blocks_in,
    find_loop,
    loop_at,
    loops_of,
    path_of,
    ranges_at,
    refreshed,
    refuse,
    replace,
    vars_in,
)


def blockize(func: PrimFunc, loop: str, primitive: str = "blockize") -> tuple[PrimFunc, str]:
    """for i0, i1: C(v = i0*4 + i1)   =>   for i0: C_o(v_o = i0): for i1: C(v = v_o*4 + i1)

    at loop i1. The outer block's iterations are the parts of the inner iterations that the outside
    loops determine. The parts from the inner loops must fill [0, n), and n must divide the rest.
    The inner block's init becomes the outer block's, in loops of its own. Raises ScheduleError for
    loops with more than one block, for a predicate that depends on these loops (any other becomes
    the outer block's), and for bindings that do not come apart.
    """
    path = find_loop(func, loop, primitive)
    top = loop_at(path)
    below = list(blocks_in(top.body))
    if len(below) != 1:
        names = ", ".join(f"'{b.name}'" for b in below)
        refuse(primitive, f"loop '{loop}' holds {len(below)} blocks: {names}", top)
    (block,) = below
    inside = path_of(func, block)
    nest = loops_of(inside)[len(loops_of(path)) - 1 :]
    for outer, inner in pairwise((*nest, block)):
        if not isinstance(outer, For) or outer.body is not inner:
            refuse(primitive, f"other statements are inside loop '{loop}'", outer)
    if vars_in(block.predicate) & {o.var for o in nest}:
        refuse(
            primitive,
            f"block '{block.name}' runs under the predicate {block.predicate}",
            block,
            "split by factors that divide the extents, or pad_einsum first",
        )
    ranges = ranges_at(inside)
    fresh = names_of(func)
    outer_iters: list[IterVar] = []
    inner_iters: list[IterVar] = []
    for i in block.iters:
        fixed, moving, n = _apart(primitive, block, i, nest, linear(i.binding, ranges))
        extent = to_expr(_divided(primitive, block, i, linear(i.extent, ranges), n), i.var.dtype)
        binding = to_expr(_divided(primitive, block, i, fixed, n), i.var.dtype)
        var = Var(fresh.fresh(f"{i.var.name}_o"), i.var.dtype)
        outer_iters.append(IterVar(var, extent, i.kind, binding))
        start: Expr = var * n if not is_const(extent, 1) else const(0, i.var.dtype)
        inner_iters.append(with_fields(i, binding=start + to_expr(moving, i.var.dtype)))
    name = block_names_of(func).fresh(f"{block.name}_o")
    init = None
    if block.init is not None:
        renamed = with_fields(block, iters=tuple(inner_iters), predicate=const(True))
        init, _ = init_nest(func, renamed, nest)
    alone = with_fields(block, iters=tuple(inner_iters), init=None, predicate=const(True))
    body: Stmt = refreshed(alone)
    for around in reversed(nest):
        body = with_fields(around, body=body)
    whole = Block(name, tuple(outer_iters), (), (), body, init)
    made = refreshed(with_fields(whole, predicate=block.predicate))
    return replace(func, top, made), name


def _apart(
    primitive: str, block: Block, i: IterVar, nest: Sequence[For], form: Linear
) -> tuple[Linear, Linear, int]:
    """(the part of an iteration's binding from the loops outside, the part from `nest`, n: the
    second part takes all values of [0, n))."""
    inner = {o.var: o for o in nest}
    terms = [(a, c, to_expr(Linear(0, {a: c}), i.var.dtype)) for a, c in form.terms.items()]
    moving = Linear(0, {a: c for a, c, term in terms if vars_in(term) & set(inner)})
    n = 1  # the values so far are 0, 1, … n - 1
    for atom, step in sorted(moving.terms.items(), key=lambda term: term[1]):
        turns = inner[atom].extent if isinstance(atom, Var) else None
        if not isinstance(turns, Const) or not 0 < step <= n:
            refuse(
                primitive,
                f"iteration '{i.var.name}' of block '{block.name}' takes no whole interval of "
                f"values inside loop '{nest[0].name}': it is {i.binding}",
                nest[0],
            )
        n += step * (int(turns) - 1)
    return form.plus(moving, -1), moving, n


def _divided(primitive: str, block: Block, i: IterVar, form: Linear, n: int) -> Linear:
    if any(c % n for c in (form.constant, *form.terms.values())):
        refuse(
            primitive,
            f"iteration '{i.var.name}' of block '{block.name}' does not come in groups of {n}: "
            f"it is {i.binding}, in [0, {i.extent})",
            block,
            "split by factors that divide the extents",
        )
    return Linear(form.constant // n, {a: c // n for a, c in form.terms.items()})
