"""fuse_reduction_epilogue: sums begin with a bias, rather than an addition of it after them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from ..arith import Bounds, equal, expr_bounds
from ..ir import (
    Binary,
    Block,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    PrimFunc,
    Store,
    Var,
    children,
    const,
    is_const,
    loads,
    once,
    rebuild,
    same_expr,
    statements,
    substitute,
    walk,
    with_fields,
)
from ..ir.build import stmts_of
from .tree import block_at, find_block, refreshed, refuse, replace, root_block, vars_in

PRIMITIVE = "fuse_reduction_epilogue"
FORM = "[iteration of the epilogue, iteration of the reduction, its factor, ...]"

Places = dict[Var, Expr]  # iterations of one block in terms of those of another


def fuse_reduction_epilogue(
    func: PrimFunc,
    reduction: str,
    epilogue: str,
    read: str | None = None,
    at: Sequence[Sequence[int]] | None = None,
) -> PrimFunc:
    """sums = 0 + products; result = f(sums + bias)   =>   sums = bias + products; result = f(sums)

    for the sums of block `reduction`, and a bias that block `epilogue` adds to these sums only. If
    the sums begin with a bias already, it is added to that one. Without such a bias the function
    stays the same. Sums of floats are rounded in that order.

    If blocks in between copy the sums, `read` is the last of them. The bias may depend on
    iterations of the epilogue that are also iterations of the reduction. A row of `at` makes an
    iteration of the epilogue from several of the reduction: [its number, a number of the
    reduction's iterations, its factor, another, its factor, ...]. Raises ScheduleError for an `at`
    that is wrong, or cannot be proved right.
    """
    last, sums, made = (
        block_at(find_block(func, name, PRIMITIVE))
        for name in (epilogue, reduction, read or reduction)
    )
    if not isinstance(last.body, Store) or not _adds_up(sums):
        return func
    buffer = made.writes[0].buffer
    if _readers(last.body.value, buffer) != 1:
        return func
    taken = _sums_taken(func, sums, made, last)
    places = _given(sums, last, at) if at is not None else _found(sums, last, taken or {})
    bias = _bias(last.body.value, buffer, set(places))
    if bias is None or not _known_before(func, bias.buffer, sums):
        return func
    value = _without(last.body.value, buffer, bias)
    if _readers(value, buffer) != 1:
        return func
    if at is not None:
        _verify(places, sums, last, taken)
    assert isinstance(sums.init, Store)
    first = substitute(bias, places)
    begin = first if is_const(sums.init.value, 0) else sums.init.value + first
    init = with_fields(sums.init, value=begin)
    func = replace(func, sums, refreshed(with_fields(sums, init=init)))
    return replace(
        func, last, refreshed(with_fields(last, body=with_fields(last.body, value=value)))
    )


def _adds_up(tile: Block) -> bool:
    """Whether a block adds to sums that begin with zeros or with a bias. Other reductions take the
    largest value, for example."""
    (store,) = (s for s in statements(tile.body) if isinstance(s, Store))
    if not isinstance(tile.init, Store):
        return False
    begin = tile.init.value
    if not (is_const(begin, 0) or isinstance(begin, Load)):
        return False

    def is_sum(e: Expr) -> bool:
        return (
            isinstance(e, Load)
            and e.buffer is store.buffer
            and all(same_expr(x, y) for x, y in zip(e.indices, store.indices, strict=True))
        )

    match store.value:
        case Binary("+", a, b):
            return (is_sum(a) or is_sum(b)) and _readers(store.value, store.buffer) == 1
        case Call("if_then_else", (_, Binary("+", a, b), kept)):
            added = is_sum(kept) and (is_sum(a) or is_sum(b))
            return added and _readers(store.value, store.buffer) == 2
    return False


def _sums_taken(func: PrimFunc, sums: Block, made: Block, last: Block) -> Places | None:
    """The iterations of `sums` in terms of those of `last`, for the sum that `last` reads. None
    where blocks in between do more than copy, or where other blocks read the sums."""
    leaves = _leaves(func)
    reader, block = last, made
    known: Places = {i.var: i.var for i in last.iters}
    while True:
        buffer = block.writes[0].buffer
        others = [b for b in leaves if b not in (reader, block)]
        if buffer in func.buffers or any(buffer in _written(b) | _read(b) for b in others):
            return None
        taken = [n for s in statements(reader.body) if isinstance(s, Store)
                 for n in loads(s.value) if n.buffer is buffer]  # fmt: skip
        stores = [s for s in statements(block.body) if isinstance(s, Store)]
        if len(taken) != 1 or len(stores) != 1:
            return None
        found: Places = {}
        for to, index in zip(stores[0].indices, taken[0].indices, strict=True):
            if isinstance(to, Var) and to not in found:
                found[to] = substitute(index, known)
            elif not isinstance(to, Const):
                return None
        alone = {i.var: const(0, i.var.dtype) for i in block.iters if is_const(i.extent, 1)}
        reader, known = block, {**alone, **found}
        if block is sums:
            return known
        copied = stores[0].value
        sources = [b for b in leaves if isinstance(copied, Load) and copied.buffer in _written(b)]
        if (
            len(sources) != 1
            or block.init is not None
            or any(v not in known for v in vars_in(copied))
        ):
            return None
        (block,) = sources


def _leaves(func: PrimFunc) -> list[Block]:
    """The blocks that hold no others."""
    blocks = [s for s in statements(func.body) if isinstance(s, Block)]
    return [b for b in blocks if not any(isinstance(s, Block) for s in statements(b.body))]


def _known_before(func: PrimFunc, buffer: Buffer, sums: Block) -> bool:
    """Whether a buffer is an input, or all written before the loops around `sums` begin."""
    parts = stmts_of(root_block(func).body)
    blocks = [[s for s in statements(part) if isinstance(s, Block)] for part in parts]
    before = next(n for n, found in enumerate(blocks) if any(b is sums for b in found))
    return not any(buffer in _written(b) for found in blocks[before:] for b in found)


def _written(block: Block) -> set[Buffer]:
    return {r.buffer for r in block.writes}


def _read(block: Block) -> set[Buffer]:
    return {r.buffer for r in block.reads}


def _found(sums: Block, last: Block, taken: Places) -> Places:
    """The iterations of `last` that equal an iteration of `sums`, each with that one."""
    extents = {i.var: i.extent for i in last.iters}
    found: Places = {}
    for i in sums.iters:
        same = taken.get(i.var)
        if isinstance(same, Var) and same in extents and same_expr(extents[same], i.extent):
            found[same] = i.var
    return found


def _given(sums: Block, last: Block, at: Sequence[Sequence[int]]) -> Places:
    """The iterations of `last` in terms of those of `sums`, as `at` says it."""
    found: Places = {}
    for row in at:
        if not _fits(row, len(last.iters), len(sums.iters)):
            refuse(PRIMITIVE, f"at holds {row!r}", last, FORM)
        number, *terms = row
        variables = (sums.iters[n].var for n in terms[::2])
        parts = [v if f == 1 else v * f for v, f in zip(variables, terms[1::2], strict=True)]
        found[last.iters[number].var] = reduce(add, parts)
    return found


def _fits(row: object, iterations: int, reduced: int) -> bool:
    """Whether a row of `at` has the form, and the blocks have the iterations that it names."""
    if not isinstance(row, list | tuple) or len(row) < 3 or len(row) % 2 == 0:
        return False
    if not all(type(n) is int and 0 <= n < 1 << 31 for n in row):
        return False
    return row[0] < iterations and all(n < reduced for n in row[1::2])


def _verify(places: Places, sums: Block, last: Block, taken: Places | None) -> None:
    """Raises ScheduleError unless `places` is right for every sum that is read, and in range for
    all sums."""
    if taken is None:
        refuse(
            PRIMITIVE, f"'{last.name}' does not take the sums of '{sums.name}' as they are", last
        )
    inside, around = ({i.var: _range(i.extent) for i in b.iters} for b in (last, sums))
    extents = {i.var: i.extent for b in (last, sums) for i in b.iters}
    for var, made in places.items():
        what = f"at says that '{var.name}' of '{last.name}' is {made} of '{sums.name}'"
        known = vars_in(made) <= taken.keys()
        if not known or not equal(substitute(made, taken), var, inside):
            refuse(PRIMITIVE, f"{what}, which does not follow from its reads", last, "another map")
        (low, high), (_, most) = expr_bounds(made, around), inside[var]
        whole = isinstance(made, Var) and same_expr(extents[made], extents[var])
        if not whole and not (low == 0 and high is not None and most is not None and high <= most):
            why = f"{what}, which has other values than 0 to {extents[var]} - 1"
            refuse(PRIMITIVE, why, last, "sums of no more than what is taken")


def _range(extent: Expr) -> Bounds:
    return 0, int(extent) - 1 if isinstance(extent, Const) else None


def _readers(value: Expr, buffer: Buffer) -> int:
    """How many places of value load the buffer."""
    places = [value, *(c for n in walk(value) for c in children(n))]
    return sum(isinstance(c, Load) and c.buffer is buffer for c in places)


def _terms(e: Any, sums: Buffer) -> tuple[Load, Load] | None:
    """(load of sums, load of bias) where e adds the two."""
    match e:
        case Binary("+", Load() as a, Load() as b):
            for x, y in ((a, b), (b, a)):
                if x.buffer is sums and y.buffer is not sums:
                    return x, y
    return None


def _bias(value: Expr, sums: Buffer, channel: set[Var]) -> Load | None:
    found: list[Load] = []

    @once
    def visit(e: Any) -> Any:
        terms = _terms(e, sums)
        if terms is not None and vars_in(terms[1]) <= channel:
            found.append(terms[1])
        return rebuild(e, visit)

    visit(value)
    return found[0] if found else None


def _without(value: Expr, sums: Buffer, bias: Load) -> Expr:
    @once
    def visit(e: Any) -> Any:
        terms = _terms(e, sums)
        if terms is not None and same_expr(terms[1], bias):
            return terms[0]
        return rebuild(e, visit)

    done: Expr = visit(value)
    return done
