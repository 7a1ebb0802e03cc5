"""Primitives on padding: decompose_padding, pad_einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arith import linear
from ..ir import (
    Binary,
    Block,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Select,
    Stmt,
    Store,
    Var,
    all_of,
    const,
    expr,
    if_then_else,
    is_const,
    load,
    loads,
    once,
    rebuild,
    same_dim,
    same_shape,
    seq,
    substitute,
    with_fields,
)
from ..ir.build import MIRRORED, compare, conjuncts, loop_nest
from ..ir.names import Names, block_names_of, names_of
from .tree import (
    block_at,
    find_leaf,
    find_loop,
    is_complete,
    is_reduction,
    loop_at,
    loops_of,
    refreshed,
    refuse,
    replace,
    vars_in,
    with_allocs,
)


def decompose_padding(func: PrimFunc, block: str, loop: str) -> tuple[PrimFunc, str]:
    """for i, j: P[i, j] = x[i-1, j-1] if inside(i, j) else c
    =>   for i, j: P[i, j] = c;   for i, j inside: P[i, j] = x[i-1, j-1]

    The first block, `<block>_pad_const`, fills all that one iteration of `loop` writes. The block
    itself then copies the inside, in loops as long as the inside."""
    primitive = "decompose_padding"
    path = find_leaf(func, block, primitive)
    target = block_at(path)
    outer = loop_at(find_loop(func, loop, primitive))
    if outer not in path:
        refuse(primitive, f"loop '{loop}' is not around block '{block}'", outer)
    store = target.body
    if not is_complete(func, target) or not isinstance(store, Store):
        refuse(primitive, f"block '{block}' is not one store without reduction", target)
    match store.value:
        case Call("if_then_else", (condition, value, fill)) | Select(condition, value, fill):
            pass
        case _:
            refuse(primitive, f"block '{block}' does not choose between data and padding", target)
    if list(loads(fill)) or vars_in(fill):
        refuse(primitive, f"the padding of block '{block}' is not constant", target)
    loops = loops_of(path)
    inner = loops[loops.index(outer) :]
    if any(o.body is not i for o, i in zip(inner, [*inner[1:], target], strict=True)):
        refuse(primitive, f"other statements are inside loop '{loop}'", outer)
    if any(o.kind != "serial" for o in inner):
        refuse(primitive, f"a loop inside loop '{loop}' is not serial", outer)
    ranges = _inside(primitive, target, condition, {o.var for o in inner})
    names = names_of(func)
    constant = _fill_nest(target, store, fill, inner, names, block_names_of(func))
    nest = _copy_nest(target, store, value, inner, ranges)
    made = block_names_of(func).fresh(f"{block}_pad_const")
    return replace(func, outer, seq([constant, nest])), made


def _inside(
    primitive: str, block: Block, condition: Expr, moving: set[Var]
) -> dict[Var, tuple[int, int]]:
    """Per loop variable the [low, high) for which the condition holds: each conjunct must bound one
    iteration by a constant, and that iteration must be one loop."""
    loop_of = {i.var: i.binding for i in block.iters}
    bounds: dict[Var, tuple[int, int]] = {}
    for part in conjuncts(condition):
        found = _bound(part)
        if found is None:
            refuse(primitive, f"'{part}' does not bound one iteration by a constant", block)
        var, low, high = found
        loop = loop_of.get(var)
        if not isinstance(loop, Var) or loop not in moving:
            refuse(primitive, f"'{part}' concerns a loop outside, or a part of one", block)
        a, b = bounds.get(loop, (0, 1 << 31))
        bounds[loop] = max(a, low), min(b, high)
    return bounds


def _bound(part: Expr) -> tuple[Var, int, int] | None:
    """(v, low, high) with part equivalent to low <= v < high."""
    if not isinstance(part, Compare) or part.op not in ("<", "<=", ">", ">="):
        return None
    form = linear(part.a, {}).plus(linear(part.b, {}), -1)
    if len(form.terms) != 1:
        return None
    ((atom, step),) = form.terms.items()
    if not isinstance(atom, Var) or step not in (1, -1):
        return None
    op = part.op if step == 1 else MIRRORED[part.op]
    at = -form.constant * step  # atom op at
    match op:
        case "<":
            return atom, 0, at
        case "<=":
            return atom, 0, at + 1
        case ">":
            return atom, at + 1, 1 << 31
    return atom, at, 1 << 31


def _fill_nest(
    block: Block,
    store: Store,
    fill: Expr,
    inner: Sequence[For],
    names: Names,
    block_names: Names,
) -> Stmt:
    fresh = {o.var: Var(names.fresh(f"{o.name}_pad"), o.var.dtype) for o in inner}
    outside: dict[Var, Expr] = {**fresh}
    inside: dict[Var, Expr] = {i.var: Var(names.fresh(f"{i.var.name}_pad")) for i in block.iters}
    iters = tuple(
        IterVar(inside[i.var], i.extent, i.kind, substitute(i.binding, outside))  # type: ignore[arg-type]
        for i in block.iters
    )
    body = Store(store.buffer, tuple(substitute(e, inside) for e in store.indices), fill)
    made = Block(block_names.fresh(f"{block.name}_pad_const"), iters, (), (), body)
    made = with_fields(made, predicate=substitute(block.predicate, outside))
    return loop_nest([(fresh[o.var], o.extent) for o in inner], refreshed(made))


def _copy_nest(
    block: Block,
    store: Store,
    value: Expr,
    inner: Sequence[For],
    ranges: dict[Var, tuple[int, int]],
) -> Stmt:
    shifted: dict[Var, Expr] = {}
    loops: list[tuple[Var, Expr]] = []
    for o in inner:
        low, high = ranges.get(o.var, (0, 1 << 31))
        extent: Expr = o.extent
        if isinstance(extent, Const):
            extent = const(max(min(high, int(extent)) - low, 0))
        elif o.var in ranges:
            extent = extent - low
        shifted[o.var] = o.var + low
        loops.append((o.var, extent))
    plain = refreshed(with_fields(block, body=Store(store.buffer, store.indices, value)))
    iters = tuple(with_fields(i, binding=substitute(i.binding, shifted)) for i in block.iters)
    moved = with_fields(plain, iters=iters, predicate=substitute(block.predicate, shifted))
    return loop_nest(loops, moved)


def pad_einsum(func: PrimFunc, block: str, padding: Sequence[int]) -> PrimFunc:
    """C[i, j] += A[i, k] * B[k, j] over [n, m, l]
    =>   A_pad, B_pad: A and B with zeros; C_pad[i, j] += … over multiples of `padding`; C: its part

    For a block that sums up products of loads at plain iterations. Each iteration's extent is
    rounded up to a multiple of its padding; zeros change no sum.
    """
    primitive = "pad_einsum"
    path = find_leaf(func, block, primitive)
    target = block_at(path)
    _require_einsum(primitive, func, target)
    if len(padding) != len(target.iters):
        refuse(
            primitive,
            f"{len(padding)} paddings for the {len(target.iters)} iterations of block '{block}'",
            target,
        )
    loops = loops_of(path)
    alone = len(loops) == len(target.iters) and all(
        i.binding is o.var and o.kind == "serial" and o.body is below
        for i, o, below in zip(target.iters, loops, [*loops[1:], target], strict=True)
    )
    if not alone or not is_const(target.predicate, True):
        refuse(primitive, f"the loops of block '{block}' are scheduled already", target)
    size: dict[Var, int] = {}
    for i, to in zip(target.iters, padding, strict=True):
        if not isinstance(i.extent, Const) or to < 1:
            refuse(
                primitive,
                f"iteration '{i.var.name}' cannot be padded to a multiple of {to}",
                target,
            )
        size[i.var] = -(-int(i.extent) // to) * to
    names, block_names = names_of(func), block_names_of(func)
    swap: dict[Buffer, Buffer] = {}
    before: list[Stmt] = []
    wanted: dict[Buffer, tuple[int, ...]] = {}
    for read in _product_loads(target):
        buffer = read.buffer
        shape = tuple(size[i] for i in read.indices)  # type: ignore[index]
        if wanted.setdefault(buffer, shape) != shape:
            refuse(primitive, f"'{buffer.name}' would be padded in two ways", target)
        if buffer not in swap and not same_shape(shape, buffer.shape):
            swap[buffer] = buffer.replace(
                name=names.fresh(f"{buffer.name}_pad"), shape=shape, strides=None
            )
            before.append(_pad_nest(buffer, swap[buffer], names, block_names))
    (out,) = {w.buffer for w in target.writes}
    wide = tuple(size[i] for i in target.writes[0].minimum)  # type: ignore[index]
    after: list[Stmt] = []
    if not same_shape(wide, out.shape):
        swap[out] = out.replace(name=names.fresh(f"{out.name}_pad"), shape=wide, strides=None)
        after.append(_crop_nest(swap[out], out, names, block_names))

    @once
    def swapped(m: Any) -> Any:
        match m:
            case Load(buffer, indices) if buffer in swap:
                return load(swap[buffer], indices)
            case Store(buffer, indices, value) if buffer in swap:
                return Store(swap[buffer], indices, swapped(value))
        return rebuild(m, swapped)

    iters = tuple(with_fields(i, extent=const(size[i.var])) for i in target.iters)
    init = None if target.init is None else swapped(target.init)
    padded = refreshed(with_fields(target, iters=iters, body=swapped(target.body), init=init))
    nest = loop_nest(
        [(o.var, const(size[i.var])) for i, o in zip(iters, loops, strict=True)], padded
    )
    return with_allocs(
        replace(func, loops[0], seq([*before, nest, *after])), add=list(swap.values())
    )


def _require_einsum(primitive: str, func: PrimFunc, block: Block) -> None:
    plain = {i.var for i in block.iters}
    good = (
        is_reduction(func, block)
        and isinstance(block.body, Store)
        and all(isinstance(i, Var) and i in plain for i in block.body.indices)
        and all(isinstance(i, Var) and i in plain for n in _product_loads(block) for i in n.indices)
        and _is_zero(block.init)
        and _is_sum_of_products(block)
    )
    if not good:
        refuse(
            primitive,
            f"block '{block.name}' is not a sum of products of elements at plain iterations",
            block,
        )


def _is_zero(init: Stmt | None) -> bool:
    return isinstance(init, Store) and isinstance(init.value, Const) and init.value.value == 0


def _product_loads(block: Block) -> list[Load]:
    written = {w.buffer for w in block.writes}
    return [n for n in loads(block.body) if n.buffer not in written]


def _is_sum_of_products(block: Block) -> bool:
    def product(e: Expr) -> bool:
        match e:
            case Load():
                return True
            case Cast(_, a):
                return product(a)
            case Binary("*", a, b):
                return product(a) and product(b)
        return False

    match block.body:
        case Store(buffer, _, Binary("+", Load(own), value)):
            return own is buffer and product(value)
    return False


def _pad_nest(source: Buffer, to: Buffer, names: Names, block_names: Names) -> Stmt:
    """for i…: to[i…] = source[i…] where that exists, else 0"""
    here, loops, iters = _grid(to, names)
    inside = all_of(
        *(
            compare("<", v, n)
            for v, n, m in zip(here, source.shape, to.shape, strict=True)
            if not same_dim(n, m)
        )
    )
    value = if_then_else(inside, load(source, here), const(0, source.dtype))
    return loop_nest(
        loops, refreshed(Block(block_names.fresh(to.name), iters, (), (), Store(to, here, value)))
    )


def _crop_nest(source: Buffer, to: Buffer, names: Names, block_names: Names) -> Stmt:
    """for i…: to[i…] = source[i…]"""
    here, loops, iters = _grid(to, names)
    store = Store(to, here, load(source, here))
    return loop_nest(loops, refreshed(Block(block_names.fresh(source.name), iters, (), (), store)))


def _grid(
    buffer: Buffer, names: Names
) -> tuple[tuple[Var, ...], list[tuple[Var, Expr]], tuple[IterVar, ...]]:
    loops = [(Var(names.fresh(f"ax{n}")), expr(extent)) for n, extent in enumerate(buffer.shape)]
    iters = tuple(
        IterVar(Var(names.fresh(f"v_{v.name}")), extent, "spatial", v) for v, extent in loops
    )
    return tuple(i.var for i in iters), loops, iters
