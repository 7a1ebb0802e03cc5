"""Primitives that move blocks: inlining, and computing them inside other blocks' loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arith import bounds, expr_bounds, linear, simplify_expr
from ..arith.regions import Interval, region_under, union_all
from ..ir import (
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
    const,
    expr,
    is_const,
    loads,
    rebuild,
    seq,
    statements,
    substitute,
    with_fields,
)
from ..ir.build import compare, loop_nest
from ..ir.names import names_of
from ..ir.nodes import Seq
from .tree import (
    block_at,
    blocks_in,
    bound_to,
    find_block,
    find_loop,
    is_complete,
    is_reduction,
    loop_at,
    loops_of,
    path_to,
    ranges_at,
    readers,
    refreshed,
    refuse,
    replace,
    root_block,
    vars_in,
    with_allocs,
    writers,
)


def compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """B[v] = f(v); … B[g(w)] …   =>   … f(g(w)) …, and the block is gone."""
    primitive = "compute_inline"
    target = block_at(find_block(func, block, primitive))
    buffer, args, value = _elementwise(primitive, func, target)
    if not is_const(target.predicate, True):
        refuse(primitive, f"block '{block}' runs under a predicate", target)
    if buffer not in root_block(func).allocs:
        refuse(primitive, f"block '{block}' writes output '{buffer.name}'", target)
    if not readers(func, buffer):
        refuse(primitive, f"nothing reads '{buffer.name}'", target)
    func = with_allocs(replace(func, target, None), drop=[buffer])

    def inlined(m: Any) -> Any:
        if isinstance(m, Load) and m.buffer is buffer:
            indices = [inlined(i) for i in m.indices]
            return substitute(value, dict(zip(args, indices, strict=True)))
        if isinstance(m, Block) and any(r.buffer is buffer for r in m.reads):
            return refreshed(
                with_fields(
                    m, body=inlined(m.body), init=None if m.init is None else inlined(m.init)
                )
            )
        return rebuild(m, inlined)

    return with_fields(func, body=inlined(func.body))


def reverse_compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """B[v] = f(v); C[v] = g(B[v])   =>   C[v] = g(f(v)): the consumer joins its only producer.

    Where C is the smaller, the block runs under the predicate that v is within C.
    """
    primitive = "reverse_compute_inline"
    target = block_at(find_block(func, block, primitive))
    out, args, value = _elementwise(primitive, func, target)
    sources = [r.buffer for r in target.reads if writers(func, r.buffer)]
    if len(set(sources)) != 1:
        refuse(primitive, f"block '{block}' must read exactly one computed buffer", target)
    buffer = sources[0]
    (producer,) = writers(func, buffer) if len(writers(func, buffer)) == 1 else (None,)
    if producer is None or not is_complete(func, producer) or not isinstance(producer.body, Store):
        refuse(primitive, f"the producer of '{buffer.name}' is no elementwise block", target)
    if [b for b in readers(func, buffer) if b is not target] or buffer in func.buffers:
        refuse(primitive, f"'{buffer.name}' is needed elsewhere", target)
    if not is_const(target.predicate, True):
        refuse(primitive, f"block '{block}' runs under a predicate", target)
    reads = [n for n in loads(value) if n.buffer is buffer]
    if any(tuple(n.indices) != args for n in reads):
        refuse(
            primitive,
            f"block '{block}' reads other elements of '{buffer.name}' than it writes",
            target,
        )
    store = producer.body
    extents = {i.var: i.extent for i in target.iters}
    bindings = {i.var: i.binding for i in producer.iters}
    within = [
        compare("<", substitute(index, bindings), extents[arg])
        for arg, index, size in zip(args, store.indices, buffer.shape, strict=True)
        if not is_const(simplify_expr(compare("<=", expr(size), extents[arg]), {}), True)
    ]

    def produced(m: Any) -> Any:
        if isinstance(m, Load) and m.buffer is buffer:
            return store.value
        return rebuild(m, produced)

    at = dict(zip(args, store.indices, strict=True))
    joined = Store(out, store.indices, produced(substitute(value, at)))
    func = with_allocs(replace(func, target, None), drop=[buffer])
    joined_block = with_fields(producer, body=joined, predicate=all_of(producer.predicate, *within))
    return replace(func, producer, refreshed(joined_block))


def _elementwise(
    primitive: str, func: PrimFunc, block: Block
) -> tuple[Buffer, tuple[Var, ...], Expr]:
    """(buffer, iteration variables in index order, value) of a block that is one plain store."""
    if not is_complete(func, block) or not isinstance(block.body, Store):
        refuse(
            primitive,
            f"block '{block.name}' does not write each element once, by one expression without "
            "reduction",
            block,
        )
    store = block.body
    args = tuple(i for i in store.indices if isinstance(i, Var))
    zeros = [i for i in store.indices if not isinstance(i, Var)]
    if zeros or len(set(args)) != len(args):
        refuse(
            primitive, f"block '{block.name}' writes at indices that are no plain iterations", block
        )
    unused = [
        i
        for i in block.iters
        if i.var not in args and not (isinstance(i.extent, Const) and i.extent.value == 1)
    ]
    if unused:
        refuse(primitive, f"block '{block.name}' has iterations that its store does not use", block)
    return store.buffer, args, store.value


def compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Moves a producer into a loop of its consumers: each turn computes what that turn needs."""
    primitive = "compute_at"
    target, position = _movable(primitive, func, block, loop)
    if any(b not in root_block(func).allocs for b in (w.buffer for w in target.writes)):
        refuse(
            primitive, f"block '{block}' writes an output, which later code may need whole", target
        )
    outer = loop_at(position)
    consumers = [c for w in target.writes for c in readers(func, w.buffer)]
    if not consumers:
        refuse(primitive, f"nothing reads what block '{block}' writes", target)
    under = set(blocks_in(outer.body))
    for consumer in consumers:
        if consumer not in under:
            refuse(
                primitive,
                f"block '{consumer.name}' reads what block '{block}' writes, but is not inside "
                f"loop '{loop}'",
                outer,
            )
    boxes: dict[Buffer, list[Interval]] = {}
    ranges = ranges_at(position)
    for write in target.writes:
        found = [
            _box(func, outer, consumer, r, ranges)
            for consumer in readers(func, write.buffer)
            for r in consumer.reads
            if r.buffer is write.buffer
        ]
        box = union_all(found, write.buffer.shape, ranges)
        assert box is not None
        boxes[write.buffer] = box
    domain = _iteration_domain(primitive, target, target.writes, boxes)
    func = replace(func, target, None)
    outer = loop_at(find_loop(func, loop, primitive))
    return _insert(func, outer, target, domain, ranges, primitive)


def reverse_compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Moves a consumer into a loop of its producers: each turn consumes what that turn made."""
    primitive = "reverse_compute_at"
    target, position = _movable(primitive, func, block, loop)
    outer = loop_at(position)
    ranges = ranges_at(position)
    producers = {p for r in target.reads for p in writers(func, r.buffer)}
    under = set(blocks_in(outer.body))
    inside = [p for p in producers if p in under]
    if not inside:
        refuse(primitive, f"no producer of block '{block}' is inside loop '{loop}'", outer)
    for producer in producers:
        if producer not in under and not _stands_before(func, producer, outer):
            refuse(primitive, f"block '{producer.name}' runs after loop '{loop}'", outer)
    boxes: dict[Buffer, list[Interval]] = {}
    for producer in inside:
        if not (is_complete(func, producer) or is_reduction(func, producer)):
            refuse(
                primitive, f"block '{producer.name}' writes only a part of what is read", producer
            )
        reduced = bound_to(producer, "reduce")
        carried = [o.name for o in loops_of(position) if o.var in reduced]
        if carried:
            refuse(
                primitive,
                f"inside loop '{loop}' block '{producer.name}' has not finished its reduction "
                f"over loop '{carried[0]}'",
                outer,
            )
        for write in producer.writes:
            box = union_all(
                [_box(func, outer, producer, write, ranges)], write.buffer.shape, ranges
            )
            assert box is not None
            boxes[write.buffer] = box
    reads = [r for r in target.reads if r.buffer in boxes]
    domain = _iteration_domain(primitive, target, reads, boxes)
    func = replace(func, target, None)
    outer = loop_at(find_loop(func, loop, primitive))
    return _insert(func, outer, target, domain, ranges, primitive)


def _movable(primitive: str, func: PrimFunc, block: str, loop: str) -> tuple[Block, list[Stmt]]:
    path = find_block(func, block, primitive)
    target = block_at(path)
    position = find_loop(func, loop, primitive)
    if not (is_complete(func, target) or is_reduction(func, target)):
        refuse(
            primitive,
            f"block '{block}' is neither complete nor a reduction with its init",
            target,
            f"{primitive} before decompose_reduction",
        )
    if position[-1] in path:
        refuse(primitive, f"block '{block}' is inside loop '{loop}' already", loop_at(position))
    for outer in loops_of(path):
        if outer.kind != "serial":
            refuse(
                primitive,
                f"loop '{outer.name}' around block '{block}' is {outer.kind}; it would be lost",
                outer,
                f"{primitive} first, then mark the loops that it makes",
            )
    return target, position


def _stands_before(func: PrimFunc, block: Block, loop: For) -> bool:
    order = [s for s in statements(func.body) if s is block or s is loop]
    return order[0] is block


def _box(
    func: PrimFunc, outer: For, block: Block, region: Any, ranges: dict[Var, Any]
) -> list[Interval]:
    """What `region` of a block below `outer` covers in one turn of `outer`."""
    path = path_to(func, lambda s: s is block)
    assert path is not None
    loops = loops_of(path)
    inner = loops[loops.index(outer) + 1 :]
    all_ranges = ranges_at(path)
    relaxed = {loop.var: all_ranges[loop.var] for loop in inner}
    bindings = {i.var: i.binding for i in block.iters}
    return region_under(region, bindings, relaxed, ranges)


def _iteration_domain(
    primitive: str, block: Block, regions: Sequence[Any], boxes: dict[Buffer, list[Interval]]
) -> dict[Var, Interval]:
    """For each spatial iteration that indexes a dimension by itself, that dimension's interval."""
    spatial = {i.var: i for i in block.iters if i.kind == "spatial"}
    domain: dict[Var, Interval] = {}
    for region in regions:
        for low, interval in zip(region.minimum, boxes[region.buffer], strict=True):
            if isinstance(low, Var) and low in spatial and low not in domain:
                domain[low] = interval
    fixed = {
        v
        for v, i in spatial.items()
        if v not in domain and not (isinstance(i.extent, Const) and i.extent.value == 1)
    }
    if fixed and any(v in fixed for r in regions for low in r.minimum for v in vars_in(low)):
        refuse(
            primitive,
            f"block '{block.name}' uses '{min(v.name for v in fixed)}' inside an index, which "
            "cannot be solved for it",
            block,
        )
    return domain


def _insert(
    func: PrimFunc,
    outer: For,
    block: Block,
    domain: dict[Var, Interval],
    ranges: dict[Var, Any],
    primitive: str,
) -> PrimFunc:
    """Puts the block, in loops over its domain, into `outer`: after the last statement that writes
    what it reads, before the first that reads what it writes."""
    names = names_of(func)
    loops: list[tuple[Var, Expr]] = []
    iters: list[IterVar] = []
    guards: list[Expr] = []
    known = dict(ranges)
    for i in block.iters:
        low, extent = domain.get(i.var, (const(0, i.var.dtype), i.extent))
        if isinstance(extent, Const) and extent.value == 1:
            binding: Expr = low
        else:
            stem = f"ax{len(loops)}" if i.kind == "spatial" else i.var.name.removeprefix("v_")
            var = Var(names.fresh(stem), i.var.dtype)
            loops.append((var, extent))
            high = expr_bounds(extent, known)[1]
            known[var] = (0, None if high is None else high - 1)
            binding = simplify_expr(low + var, known)
        iters.append(IterVar(i.var, i.extent, i.kind, binding))
        below = linear(binding, known)
        past = below.plus(linear(i.extent, known), -1)
        if i.var in domain:
            if (lowest := bounds(below, known)[0]) is None or lowest < 0:
                guards.append(simplify_expr(compare(">=", binding, 0), known))
            if (highest := bounds(past, known)[1]) is None or highest >= 0:
                guards.append(simplify_expr(compare("<", binding, i.extent), known))
    moved = with_fields(block, iters=tuple(iters), predicate=all_of(*guards))
    nest = loop_nest(loops, moved)
    body = list(outer.body.stmts) if isinstance(outer.body, Seq) else [outer.body]
    sources = {r.buffer for r in block.reads}
    results = {w.buffer for w in block.writes}
    after = max(
        (
            n + 1
            for n, s in enumerate(body)
            for b in blocks_in(s)
            for w in b.writes
            if w.buffer in sources
        ),
        default=0,
    )
    before = min(
        (
            n
            for n, s in enumerate(body)
            for b in blocks_in(s)
            for r in b.reads
            if r.buffer in results
        ),
        default=len(body),
    )
    if after > before:
        refuse(
            primitive,
            f"in loop '{outer.name}' block '{block.name}' would stand after a statement that needs "
            "its result",
            outer,
        )
    body.insert(before if primitive == "compute_at" else after, nest)
    return replace(func, outer, with_fields(outer, body=seq(body)))
