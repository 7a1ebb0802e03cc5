"""Finding and replacing loops and blocks by name, and the facts that decide legality."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from ..arith import Bounds, loop_ranges, turn_range
from ..errors import ScheduleError
from ..ir import (
    Block,
    Buffer,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Ramp,
    Region,
    Stmt,
    Store,
    Var,
    inner_statements,
    rebuild,
    seq,
    statements,
    walk,
    with_fields,
)
from ..ir.build import is_root
from ..ir.nodes import Seq
from ..ir.printer import loop_header, script
from ..ir.regions import point_regions, with_guards
from ..ir.structural import content
from .touched import touched


def refuse(primitive: str, why: str, at: Stmt | None = None, mend: str = "") -> NoReturn:
    """Raises ScheduleError: the primitive, why it is illegal, and the loop or block it is about."""
    raise ScheduleError(
        f"{primitive}: {why}", where=excerpt(at) if at is not None else "", mend=mend
    )


def excerpt(s: Stmt) -> str:
    """The first line of a loop or block, as messages quote it."""
    return loop_header(s) if isinstance(s, For) else script(s).splitlines()[0]


def path_to(func: PrimFunc, wanted: Callable[[Stmt], bool]) -> list[Stmt] | None:
    """The statements from the function's body down to the first wanted one, inclusive."""
    found = _upwards(func.body, wanted)
    return None if found is None else found[::-1]


def _upwards(s: Stmt, wanted: Callable[[Stmt], bool]) -> list[Stmt] | None:
    if wanted(s):
        return [s]
    for inner in inner_statements(s):
        if (found := _upwards(inner, wanted)) is not None:
            found.append(s)
            return found
    return None


def path_of(func: PrimFunc, s: Stmt) -> list[Stmt]:
    """The path to a statement that the function holds."""
    path = path_to(func, lambda other: other is s)
    assert path is not None, f"not in {func.name}:\n{s}"
    return path


def find_loop(func: PrimFunc, name: str, primitive: str) -> list[Stmt]:
    """The path to the loop of that name; ScheduleError naming the nearest loops."""
    path = path_to(func, lambda s: isinstance(s, For) and s.var.name == name)
    if path is None:
        loops = [s.var.name for s in statements(func.body) if isinstance(s, For)]
        refuse(primitive, f"no loop '{name}'", mend=nearest(name, loops))
    return path


def find_block(func: PrimFunc, name: str, primitive: str) -> list[Stmt]:
    """The path to the block of that name; ScheduleError naming the nearest blocks."""
    path = path_to(func, lambda s: isinstance(s, Block) and s.name == name)
    if path is None:
        blocks = [s.name for s in statements(func.body) if isinstance(s, Block)]
        refuse(primitive, f"no block '{name}'", mend=nearest(name, blocks))
    return path


def find_node(func: PrimFunc, name: str, primitive: str) -> list[Stmt]:
    """The path to the loop or block of that name; ScheduleError naming the nearest."""
    path = path_to(func, lambda s: isinstance(s, (For, Block)) and s.name == name)
    if path is None:
        names = [s.name for s in statements(func.body) if isinstance(s, (For, Block))]
        refuse(primitive, f"no loop or block '{name}'", mend=nearest(name, names))
    return path


def nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 3) or known[:8]
    return f"one of {', '.join(near)}" if near else ""


def loop_at(path: list[Stmt]) -> For:
    assert isinstance(path[-1], For)
    return path[-1]


def block_at(path: list[Stmt]) -> Block:
    assert isinstance(path[-1], Block)
    return path[-1]


def loops_of(path: list[Stmt]) -> list[For]:
    """The loops on a path within the innermost block around its end, outermost first: no loop
    moves across the edge of a block."""
    inside = max((n for n, s in enumerate(path[:-1]) if isinstance(s, Block)), default=-1)
    return [s for s in path[inside + 1 :] if isinstance(s, For)]


def blocks_in(s: Stmt) -> Iterator[Block]:
    """The outermost blocks in s, without the root. For legality, each stands for the blocks inside
    it."""
    pending = [s]
    while pending:
        top = pending.pop()
        if isinstance(top, Block) and not is_root(top):
            yield top
        else:
            pending += reversed(inner_statements(top))


def blocks_under(func: PrimFunc, s: Stmt) -> Iterator[Block]:
    """The outermost blocks in s, those without iterations too, and the blocks right inside of
    these. The function's root is not among them."""
    pending = [s]
    while pending:
        top = pending.pop()
        named = isinstance(top, Block) and top is not func.body
        if isinstance(top, Block) and named:
            yield top
        if not named or (isinstance(top, Block) and is_root(top)):
            pending += reversed(inner_statements(top))


def ranges_at(path: list[Stmt]) -> dict[Var, Bounds]:
    """The ranges of the loops on a path, and of the iterations of the blocks around its end."""
    known = loop_ranges([s for s in path if isinstance(s, For)])
    for outer in path[:-1]:
        if isinstance(outer, Block):
            for i in outer.iters:
                known[i.var] = turn_range(i.extent, known)
    return known


def is_leaf(block: Block) -> bool:
    """Whether the block is statements on scalars: no loops, blocks or vectors inside."""
    return not any(
        isinstance(n, (For, Block, Ramp))
        for part in (block.body, block.init)
        if part is not None
        for n in walk(part)
    )


def find_leaf(func: PrimFunc, name: str, primitive: str) -> list[Stmt]:
    """The path to a block that is outermost and a leaf; ScheduleError where it is not both."""
    path = find_outermost(func, name, primitive)
    require_leaf(primitive, block_at(path))
    return path


def find_outermost(func: PrimFunc, name: str, primitive: str) -> list[Stmt]:
    """The path to a block that is inside no other; ScheduleError where it is."""
    path = find_block(func, name, primitive)
    block = block_at(path)
    for outer in path[:-1]:
        if isinstance(outer, Block) and not is_root(outer):
            refuse(
                primitive,
                f"block '{name}' is inside block '{outer.name}'",
                block,
                f"{primitive} before blockize",
            )
    return path


def require_leaf(primitive: str, block: Block) -> None:
    """Refuses a block whose body is more than statements on scalars."""
    if not is_leaf(block):
        refuse(
            primitive,
            f"block '{block.name}' holds loops, blocks or vectors",
            block,
            f"{primitive} before blockize and tensorize",
        )


def replace(func: PrimFunc, old: Stmt, to: Stmt | None) -> PrimFunc:
    """func with a statement replaced, or removed together with the loops that it leaves empty."""
    path = path_of(func, old)
    inner = path.pop()
    if to is None:
        while path and isinstance(path[-1], For):
            inner = path.pop()
    made: Stmt = to if to is not None else Seq(())
    for outer in reversed(path):  # statements beside the path stay as they are
        made, inner = rebuild(outer, _replacing(inner, made)), outer
    return with_fields(func, body=made)


def _replacing(old: Stmt, new: Stmt) -> Callable[[Any], Any]:
    return lambda n: new if n is old else n


def root_block(func: PrimFunc) -> Block:
    assert isinstance(func.body, Block) and is_root(func.body), "a scheduled function has a root"
    return func.body


def with_allocs(
    func: PrimFunc, add: Iterable[Buffer] = (), drop: Iterable[Buffer] = ()
) -> PrimFunc:
    root = root_block(func)
    dropped = set(drop)
    allocs = tuple(b for b in root.allocs if b not in dropped) + tuple(add)
    return with_fields(func, body=with_fields(root, allocs=allocs))


def writers(func: PrimFunc, buffer: Buffer) -> list[Block]:
    return [b for b in blocks_in(func.body) if any(r.buffer is buffer for r in b.writes)]


def readers(func: PrimFunc, buffer: Buffer) -> list[Block]:
    """Blocks that read the buffer; a reduction's read of its own output does not count."""
    return [b for b in blocks_in(func.body) if any(r.buffer is buffer for r in b.reads)]


def is_complete(func: PrimFunc, block: Block) -> bool:
    """Whether the block alone writes its outputs, each element once, and never reads them."""
    return (
        block.init is None
        and all(i.kind == "spatial" for i in block.iters)
        and not _reads_own(block)
        and all(len(writers(func, w.buffer)) == 1 for w in block.writes)
    )


def is_reduction(func: PrimFunc, block: Block) -> bool:
    """Whether the block alone writes its outputs, by an init and steps in any order."""
    reduced = {i.var for i in block.iters if i.kind == "reduce"}
    return (
        block.init is not None
        and begins_what_it_updates(block)
        and not _reads_own(block)
        and all(len(writers(func, w.buffer)) == 1 for w in block.writes)
        and not any(n in reduced for w in block.writes for low in w.minimum for n in walk(low))
    )


def begins_what_it_updates(block: Block) -> bool:
    """Whether the init, if there is one, writes the elements that a step writes. Of blocks that
    hold loops, blocks or vectors this is known, since primitives made them."""
    if block.init is None or not is_leaf(block):
        return True
    return _places(block.init) == _places(block.body)


def _places(s: Stmt) -> set[tuple[Any, ...]]:
    stores = [n for n in statements(s) if isinstance(n, Store)]
    return {(n.buffer, *map(content, n.indices)) for n in stores}


def _reads_own(block: Block) -> bool:
    written = {w.buffer for w in block.writes}
    return any(r.buffer in written for r in block.reads)


def vars_in(e: Expr | IterVar | Region) -> set[Var]:
    return {n for n in walk(e) if isinstance(n, Var)}


def bound_to(block: Block, kind: str) -> set[Var]:
    """The loop variables that a block's iterations of a kind are bound to."""
    return {v for i in block.iters if i.kind == kind for v in vars_in(i.binding)}


def refreshed(block: Block) -> Block:
    """The block with reads and writes computed again from its body."""
    body = block.body if block.init is None else seq([block.init, block.body])
    leaf = is_leaf(block)
    reads, writes = point_regions(body) if leaf else touched(body, block.iters)
    own = {w.buffer for w in writes} if block.init is not None else set()
    reads = with_guards(tuple(r for r in reads if r.buffer not in own), block.predicate)
    return with_fields(block, reads=reads, writes=writes)


def accesses(block: Block, buffer: Buffer) -> list[Load | Store]:
    return [n for n in walk(block) if isinstance(n, (Load, Store)) and n.buffer is buffer]
