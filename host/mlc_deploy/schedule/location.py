"""Primitives that move blocks: inlining, and computing them inside other blocks' loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arith import Ranges, bounds, equal, linear, simplify_expr, turn_range
from ..arith.regions import Interval, region_under, union, union_all
from ..ir import (
    Block,
    Buffer,
    Const,
    Dim,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Region,
    Stmt,
    Store,
    Var,
    addressed,
    all_of,
    const,
    expr,
    is_const,
    loads,
    once,
    rebuild,
    same_exprs,
    seq,
    statements,
    substitute,
    with_fields,
)
from ..ir.build import compare, loop_nest, stmts_of
from ..ir.names import names_of
from ..ir.structural import content
from .coverage import is_bounded_by_iterations, is_whole, turns_disjoint, written_box
from .loops import require_independent
from .tree import (
    block_at,
    blocks_in,
    bound_to,
    find_block,
    find_leaf,
    find_loop,
    is_complete,
    is_reduction,
    loop_at,
    loops_of,
    path_of,
    ranges_at,
    readers,
    refreshed,
    refuse,
    replace,
    require_leaf,
    root_block,
    vars_in,
    with_allocs,
    writers,
)


def compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """B[v] = f(v); … B[g(w)] …   =>   … f(g(w)) …, and the block is gone."""
    primitive = "compute_inline"
    target = block_at(find_leaf(func, block, primitive))
    buffer, args, value = _elementwise(primitive, func, target)
    if not is_const(target.predicate, True):
        refuse(primitive, f"block '{block}' runs under a predicate", target)
    if buffer not in root_block(func).allocs:
        refuse(
            primitive,
            f"block '{block}' writes output '{buffer.name}'",
            target,
            f"'{buffer.name}' left out of the arguments, since it is not computed when inlined",
        )
    if not readers(func, buffer):
        refuse(primitive, f"nothing reads '{buffer.name}'", target)
    for reader in readers(func, buffer):
        require_leaf(primitive, reader)
        if buffer in addressed(reader.body):
            refuse(primitive, f"block '{reader.name}' takes the address of '{buffer.name}'",
                   target)  # fmt: skip
    func = with_allocs(replace(func, target, None), drop=[buffer])

    elements: dict[bytes, Expr] = {}  # by the content of their loads: each is computed once

    @once
    def inlined(m: Any) -> Any:
        if isinstance(m, Load) and m.buffer is buffer:
            found = elements.get(content(m))
            if found is None:
                indices = [inlined(i) for i in m.indices]
                found = substitute(value, dict(zip(args, indices, strict=True)))
                elements[content(m)] = found
            return found
        if isinstance(m, Block) and any(r.buffer is buffer for r in m.reads):
            init = None if m.init is None else inlined(m.init)
            return refreshed(
                with_fields(m, body=inlined(m.body), init=init, predicate=inlined(m.predicate))
            )
        return rebuild(m, inlined)

    return with_fields(func, body=inlined(func.body))


def reverse_compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """B[v] = f(v); C[v] = g(B[v])   =>   C[v] = g(f(v)): the consumer joins its only producer.

    If C is smaller, the block runs under the predicate that v is within C.
    """
    primitive = "reverse_compute_inline"
    target = block_at(find_leaf(func, block, primitive))
    out, args, value = _elementwise(primitive, func, target)
    sources = [r.buffer for r in target.reads if writers(func, r.buffer)]
    if len(set(sources)) != 1:
        refuse(primitive, f"block '{block}' must read exactly one computed buffer", target)
    buffer = sources[0]
    (producer,) = writers(func, buffer) if len(writers(func, buffer)) == 1 else (None,)
    if producer is None or not is_complete(func, producer) or not isinstance(producer.body, Store):
        refuse(primitive, f"the producer of '{buffer.name}' is not an elementwise block", target)
    if [b for b in readers(func, buffer) if b is not target] or buffer in func.buffers:
        refuse(primitive, f"'{buffer.name}' is needed elsewhere", target)
    if not is_const(target.predicate, True):
        refuse(primitive, f"block '{block}' runs under a predicate", target)
    reads = [n for n in loads(value) if n.buffer is buffer]
    if any(not same_exprs(n.indices, args) for n in reads):
        refuse(
            primitive,
            f"block '{block}' reads other elements of '{buffer.name}' than it writes",
            target,
        )
    store = producer.body
    extents = {i.var: i.extent for i in target.iters}
    for arg, size in zip(args, buffer.shape, strict=True):
        if not _at_most(extents[arg], size, {}):
            refuse(primitive, f"'{out.name}' has elements that '{buffer.name}' has not", target)
    bindings = {i.var: i.binding for i in producer.iters}
    within = [
        compare("<", substitute(index, bindings), extents[arg])
        for arg, index, size in zip(args, store.indices, buffer.shape, strict=True)
        if not is_const(simplify_expr(compare("<=", expr(size), extents[arg]), {}), True)
    ]

    @once
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
    if len(set(args)) != len(store.indices):
        refuse(
            primitive,
            f"block '{block.name}' writes at indices that are not plain iterations",
            block,
        )
    unused = [
        i
        for i in block.iters
        if all(i.var is not a for a in args)
        and not (isinstance(i.extent, Const) and i.extent.value == 1)
    ]
    if unused:
        refuse(primitive, f"block '{block.name}' has iterations that its store does not use", block)
    return store.buffer, args, store.value


def compute_at(func: PrimFunc, block: str, loop: str, whole: Sequence[int] = ()) -> PrimFunc:
    """Moves a producer into a loop of its consumers: each iteration computes what that iteration
    needs. Iterations with the numbers in `whole` run completely.

    The block may write an argument if the iterations need each of its elements exactly once.
    """
    primitive = "compute_at"
    target, position = _movable(primitive, func, block, loop)
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
    domain = _iteration_domain(primitive, target, target.writes, boxes, ranges)
    for number in whole:
        if not (type(number) is int and 0 <= number < len(target.iters)):
            refuse(
                primitive, f"whole holds {number!r}", target, "numbers of the block's iterations"
            )
        domain.pop(target.iters[number].var, None)
    func = replace(func, target, None)
    outer = loop_at(find_loop(func, loop, primitive))
    func = _insert(func, outer, target, domain, ranges, primitive)
    for write in target.writes:
        if write.buffer in func.buffers:
            _require_each_once(func, block, write, outer)
    return func


def _require_each_once(func: PrimFunc, block: str, write: Region, loop: For) -> None:
    """Refuses unless the block, where it is now, writes each element of an argument exactly
    once."""
    path = find_block(func, block, "compute_at")
    target, around = block_at(path), loops_of(path)
    found = written_box(target, write, around, {})
    whole = (
        found is not None
        and not found[1]
        and all(
            equal(low, const(0), {}) and _at_most(expr(size), count, {})
            for (low, count), size in zip(found[0], write.buffer.shape, strict=True)
        )
    )
    twice = [o for o in around if not turns_disjoint(o, target, ("spatial", "reduce"))]
    if not whole or twice:
        why = (
            f"it is not certain that the iterations of loop '{(twice or [loop])[0].name}' need "
            "each of its elements, and none twice"
        )
        refuse(
            "compute_at",
            f"block '{block}' writes argument '{write.buffer.name}', and {why}",
            loop,
            f"a loop around all of it, or '{write.buffer.name}' left out of the arguments",
        )


def reverse_compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Moves a consumer into a loop of its producers: each iteration consumes what that iteration
    made."""
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
        if producer not in under and not _done_before(func, producer, target, outer):
            refuse(
                primitive,
                f"block '{producer.name}' has not written all that block '{block}' reads when "
                f"loop '{loop}' runs",
                outer,
            )
    made: dict[Buffer, list[Interval]] = {}
    when: list[Expr] = []
    for producer in inside:
        _require_finished(primitive, func, producer, position)
        inner = loops_of(path_of(func, producer))[len(loops_of(position)) :]
        for write in producer.writes:
            box = written_box(producer, write, inner, ranges)
            if box is None:
                refuse(
                    primitive,
                    f"what one iteration of loop '{loop}' writes to '{write.buffer.name}' is not "
                    "a whole box",
                    outer,
                )
            made[write.buffer] = box[0]
            when += box[1]
    domain = _domain_of_made(primitive, target, loop, made, ranges)
    func = replace(func, target, None)
    outer = loop_at(find_loop(func, loop, primitive))
    return _insert(func, outer, target, domain, ranges, primitive, when)


def _require_finished(
    primitive: str, func: PrimFunc, producer: Block, position: list[Stmt]
) -> None:
    """Refuses unless the producer finishes its elements in each iteration of the loop."""
    if not (is_complete(func, producer) or is_reduction(func, producer)):
        refuse(primitive, f"block '{producer.name}' writes only a part of what is read", producer)
    reduced = bound_to(producer, "reduce")
    carried = [o.name for o in loops_of(position) if o.var in reduced]
    if carried:
        refuse(
            primitive,
            f"inside loop '{loop_at(position).name}' block '{producer.name}' has not finished its "
            f"reduction over loop '{carried[0]}'",
            loop_at(position),
        )


def _domain_of_made(
    primitive: str,
    block: Block,
    loop: str,
    made: dict[Buffer, list[Interval]],
    ranges: Ranges,
) -> dict[Var, Interval]:
    """The part of the block's iterations that reads what one iteration made, and nothing else.

    Iterations follow the dimensions of the first buffer that they index by themselves; every other
    dimension must be made as a whole.
    """
    spatial = {i.var: i for i in block.iters if i.kind == "spatial"}
    reads = [r for r in block.reads if r.buffer in made]
    first = reads[0]
    domain: dict[Var, Interval] = {}
    for low, interval, size in zip(
        first.minimum, made[first.buffer], first.buffer.shape, strict=True
    ):
        if isinstance(low, Var) and low in spatial and not is_whole(interval, size, ranges):
            domain.setdefault(low, interval)
    for r in reads:
        for low, interval, size in zip(r.minimum, made[r.buffer], r.buffer.shape, strict=True):
            if is_whole(interval, size, ranges):
                continue
            followed = (
                isinstance(low, Var)
                and low in domain
                and all(equal(a, b, ranges) for a, b in zip(domain[low], interval, strict=True))
                and _at_most(spatial[low].extent, size, ranges)
            )
            if not followed:
                refuse(
                    primitive,
                    f"block '{block.name}' reads elements of '{r.buffer.name}' that one iteration "
                    f"of loop '{loop}' does not make",
                    block,
                    "compute_at the producer, which makes what each iteration reads",
                )
    return domain


def _at_most(extent: Expr, size: Dim, ranges: Ranges) -> bool:
    """Whether extent <= size is certain."""
    over = bounds(linear(extent, ranges).plus(linear(expr(size), ranges), -1), ranges)[1]
    return over is not None and over <= 0


def _movable(primitive: str, func: PrimFunc, block: str, loop: str) -> tuple[Block, list[Stmt]]:
    path = find_leaf(func, block, primitive)
    target = block_at(path)
    position = find_loop(func, loop, primitive)
    if not (is_complete(func, target) or is_reduction(func, target)):
        refuse(
            primitive,
            f"block '{block}' is neither complete nor a reduction with its init",
            target,
            f"{primitive} before decompose_reduction",
        )
    if not is_bounded_by_iterations(target, ranges_at(path)):
        refuse(
            primitive,
            f"block '{block}' runs under a predicate, which would be lost",
            target,
            f"{primitive} before the step that put it there",
        )
    around = {loop.var for loop in loops_of(path)}
    for i in target.iters:
        if vars_in(i.extent) & around:
            refuse(
                primitive,
                f"'{i.var.name}' has {i.extent} iterations, as other loops have it",
                target,
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


def _done_before(func: PrimFunc, producer: Block, consumer: Block, loop: For) -> bool:
    """Whether the producer, outside the loop, has run as far as the consumer needs when the loop
    begins: it stands before the loop, and every loop around both is around the consumer, too."""
    order = [s for s in statements(func.body) if s is producer or s is loop]
    if order[0] is not producer:
        return False
    made, used, place = (set(loops_of(path_of(func, s))) for s in (producer, consumer, loop))
    return made & place <= used


def _box(
    func: PrimFunc, outer: For, block: Block, region: Any, ranges: dict[Var, Any]
) -> list[Interval]:
    """The box that `region` of a block below `outer` covers in one iteration of `outer`."""
    path = path_of(func, block)
    loops = loops_of(path)
    inner = loops[loops.index(outer) + 1 :]
    all_ranges = ranges_at(path)
    relaxed = {loop.var: all_ranges[loop.var] for loop in inner}
    bindings = {i.var: i.binding for i in block.iters}
    return region_under(region, bindings, relaxed, ranges)


def _iteration_domain(
    primitive: str,
    block: Block,
    regions: Sequence[Any],
    boxes: dict[Buffer, list[Interval]],
    ranges: Ranges,
) -> dict[Var, Interval]:
    """For each spatial iteration that indexes a dimension by itself, the dimension's interval."""
    spatial = {i.var: i for i in block.iters if i.kind == "spatial"}
    domain: dict[Var, Interval] = {}
    for region in regions:
        for low, interval in zip(region.minimum, boxes[region.buffer], strict=True):
            if isinstance(low, Var) and low in spatial:
                if low in domain:
                    size = spatial[low].extent
                    (interval,) = union([domain[low]], [interval], [size], ranges)
                domain[low] = interval
    for region in regions:
        plain = {low for low in region.minimum if isinstance(low, Var)}
        hidden = [
            v
            for low in region.minimum
            for v in sorted(vars_in(low) - plain, key=lambda v: v.name)
            if v in spatial and not is_const(spatial[v].extent, 1)
        ]
        if hidden:
            refuse(
                primitive,
                f"block '{block.name}' uses '{hidden[0].name}' inside an index of "
                f"'{region.buffer.name}', which cannot be solved for it",
                block,
            )
    return domain


def _insert(
    func: PrimFunc,
    outer: For,
    block: Block,
    domain: dict[Var, Interval],
    ranges: Ranges,
    primitive: str,
    when: Sequence[Expr] = (),
) -> PrimFunc:
    """Puts the block, in loops over its domain and under the conditions `when`, into `outer`: after
    the last writer of its inputs, before the first reader of its outputs."""
    names = names_of(func)
    loops: list[tuple[Var, Expr]] = []
    iters: list[IterVar] = []
    guards: list[Expr] = list(when)
    known = dict(ranges)
    for i in block.iters:
        low, extent = domain.get(i.var, (const(0, i.var.dtype), i.extent))
        if isinstance(extent, Const) and extent.value == 1:
            binding: Expr = low
        else:
            stem = f"ax{len(loops)}" if i.kind == "spatial" else i.var.name.removeprefix("v_")
            var = Var(names.fresh(stem), i.var.dtype)
            loops.append((var, extent))
            known[var] = turn_range(extent, known)
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
    body = list(stmts_of(outer.body))
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
    assert after <= before, f"{outer} needs block '{block.name}' before its sources are made"
    body.insert(before if primitive == "compute_at" else after, nest)
    func = replace(func, outer, with_fields(outer, body=seq(body)))
    for around in loops_of(find_loop(func, outer.name, primitive)):
        if around.kind in ("parallel", "vectorized"):
            require_independent(primitive, func, around)
    return func
