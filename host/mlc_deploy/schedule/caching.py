"""Primitives that add a copy of a buffer: cache_read, cache_write; and set_scope."""

from __future__ import annotations

from typing import Any, get_args

from ..ir import (
    Block,
    Buffer,
    Expr,
    IterVar,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
    const,
    expr,
    once,
    rebuild,
    replace_buffers,
    seq,
    statements,
    with_fields,
)
from ..ir.build import is_root, loop_nest, stmts_of
from ..ir.names import block_names_of, names_of
from ..ir.nodes import Scope, Seq
from .coverage import is_bounded_by_iterations
from .tree import (
    block_at,
    blocks_in,
    find_block,
    find_leaf,
    find_outermost,
    is_complete,
    is_reduction,
    path_of,
    ranges_at,
    readers,
    refreshed,
    refuse,
    replace,
    root_block,
    with_allocs,
    writers,
)


def cache_write(func: PrimFunc, block: str, index: int, scope: Scope) -> tuple[PrimFunc, str]:
    """B[v] = …   =>   B_local[v] = …; B[v] = B_local[v]. The copy's block is `<buffer>_<scope>`."""
    primitive = "cache_write"
    known_scope(primitive, scope)
    path = find_outermost(func, block, primitive)
    target = block_at(path)
    if not (is_complete(func, target) or is_reduction(func, target)):
        refuse(primitive, f"block '{block}' is neither complete nor a reduction", target)
    if not is_bounded_by_iterations(target, ranges_at(path)):
        refuse(primitive, f"block '{block}' leaves out elements: {target.predicate}", target)
    buffer = _nth(primitive, target, [w.buffer for w in target.writes], index)
    if any(b in readers(func, buffer) for b in blocks_in(_top_statement(path))):
        refuse(primitive, f"'{buffer.name}' is read inside the loops that write it", target)
    cache = _cache_of(func, buffer, scope)
    swapped = replace_buffers(target, {buffer: cache})
    copy, name = _copy(func, cache, buffer, scope)
    func = replace(func, target, swapped)
    top = _top_statement(path_of(func, swapped))
    return with_allocs(replace(func, top, seq([top, copy])), add=[cache]), name


def cache_read(func: PrimFunc, block: str, index: int, scope: Scope) -> tuple[PrimFunc, str]:
    """… A[v] …   =>   A_local[v] = A[v]; … A_local[v] …, for one reader."""
    primitive = "cache_read"
    known_scope(primitive, scope)
    path = find_leaf(func, block, primitive)
    target = block_at(path)
    buffer = _nth(primitive, target, list(dict.fromkeys(r.buffer for r in target.reads)), index)
    cache = _cache_of(func, buffer, scope)

    @once
    def cached(m: Any) -> Any:
        if isinstance(m, Load) and m.buffer is buffer:
            return Load(cache, tuple(cached(i) for i in m.indices), m.dtype)
        return rebuild(m, cached)

    init = None if target.init is None else cached(target.init)
    predicate = cached(target.predicate)
    swapped = refreshed(
        with_fields(target, body=cached(target.body), init=init, predicate=predicate)
    )
    copy, name = _copy(func, buffer, cache, scope)
    func = replace(func, target, swapped)
    root = root_block(func)
    body = list(stmts_of(root.body))
    made = [
        n + 1 for n, s in enumerate(body) if any(b in writers(func, buffer) for b in blocks_in(s))
    ]
    first = next(n for n, s in enumerate(body) if any(b is swapped for b in statements(s)))
    if max(made, default=0) > first:
        refuse(primitive, f"'{buffer.name}' is written inside the loops that read it", target)
    body.insert(max(made, default=0), copy)
    func = with_fields(func, body=with_fields(root, body=seq(body)))
    return with_allocs(func, add=[cache]), name


def known_scope(primitive: str, scope: str) -> None:
    """Refuses scopes that scripts have not either."""
    if scope not in get_args(Scope):
        refuse(primitive, f"no scope '{scope}'", mend='"global" or "local"')


def _nth(primitive: str, block: Block, buffers: list[Buffer], index: int) -> Buffer:
    if not 0 <= index < len(buffers):
        refuse(
            primitive,
            f"block '{block.name}' has no buffer number {index}",
            block,
            ", ".join(f"{n} is '{b.name}'" for n, b in enumerate(buffers)),
        )
    return buffers[index]


def _cache_of(func: PrimFunc, buffer: Buffer, scope: Scope) -> Buffer:
    name = names_of(func).fresh(f"{buffer.name}_{scope}")
    return buffer.replace(name=name, scope=scope, strides=None)


def _copy(func: PrimFunc, source: Buffer, to: Buffer, scope: str) -> tuple[Stmt, str]:
    """for ax0, … : to[ax0, …] = source[ax0, …], as a block of its own."""
    names = names_of(func)
    loops: list[tuple[Var, Expr]] = []
    iters: list[IterVar] = []
    for n, extent in enumerate(source.shape):
        loop = Var(names.fresh(f"ax{n}"))
        loops.append((loop, expr(extent)))
        iters.append(IterVar(Var(names.fresh(f"v{n}")), expr(extent), "spatial", loop))
    here = tuple(i.var for i in iters)
    cache = to if to.scope == scope and to.name.endswith(scope) else source
    name = block_names_of(func).fresh(cache.name)
    unit = (IterVar(Var(names.fresh("vu")), const(1), "spatial", const(0)),)
    block = Block(name, tuple(iters) or unit, (), (), Store(to, here, source[here]))
    return loop_nest(loops, refreshed(block)), name


def _top_statement(path: list[Stmt]) -> Stmt:
    """The statement on the path that stands right in the root block."""
    inside = next(n for n, s in enumerate(path) if isinstance(s, Block) and is_root(s)) + 1
    return path[inside + 1] if isinstance(path[inside], Seq) else path[inside]


def set_scope(func: PrimFunc, block: str, index: int, scope: Scope) -> PrimFunc:
    """Puts a buffer that a block writes into another scope."""
    primitive = "set_scope"
    known_scope(primitive, scope)
    target = block_at(find_block(func, block, primitive))
    buffer = _nth(primitive, target, [w.buffer for w in target.writes], index)
    if buffer not in (*root_block(func).allocs, *target.allocs):
        refuse(primitive, f"'{buffer.name}' is a parameter; its scope is global", target)
    return with_fields(func, body=replace_buffers(func.body, {buffer: buffer.replace(scope=scope)}))
