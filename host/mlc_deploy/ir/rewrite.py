"""Walking and rebuilding the IR. A pass names only what it changes; the rest is `rebuild`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from . import build
from .nodes import (
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Evaluate,
    Expr,
    For,
    If,
    IterVar,
    Let,
    Load,
    Node,
    Not,
    PrimFunc,
    Ramp,
    Reduce,
    Region,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
)

N = TypeVar("N", bound=Node)
Visit = Callable[[Any], Any]


PLAIN = frozenset(("+", "-", "*", "/"))  # operators that fold nothing but constants


def _each(nodes: tuple[N, ...], f: Visit) -> tuple[N, ...]:
    """f over a tuple; the same tuple when f changed none."""
    changed = tuple([f(n) for n in nodes])
    return nodes if all(map(operator.is_, changed, nodes)) else changed


def rebuild(n: N, f: Visit) -> N:
    """n with f applied to every child; n itself when f changed none of them.

    Expressions whose children changed are made through build.py, so constants fold on the way.
    """
    visit = _REBUILD.get(type(n))
    return n if visit is None else visit(n, f)


def _load(n: Load, f: Visit) -> Expr:
    indices = _each(n.indices, f)
    if indices is n.indices:
        return n
    if all(a.dtype == b.dtype for a, b in zip(indices, n.indices, strict=True)):
        return Load(n.buffer, indices, n.dtype)
    return build.load(n.buffer, indices)


def _binary(n: Binary, f: Visit) -> Expr:
    a, b = f(n.a), f(n.b)
    if a is n.a and b is n.b:
        return n
    plain = type(a) is not Const and type(b) is not Const and n.op in PLAIN
    if plain and a.dtype == n.dtype == b.dtype:
        return Binary(n.op, a, b, n.dtype)
    return build.binary(n.op, a, b)


def _compare(n: Compare, f: Visit) -> Expr:
    a, b = f(n.a), f(n.b)
    return n if a is n.a and b is n.b else build.compare(n.op, a, b)


def _not(n: Not, f: Visit) -> Expr:
    a = f(n.a)
    return n if a is n.a else build.not_(a)


def _select(n: Select, f: Visit) -> Expr:
    c, a, b = f(n.condition), f(n.a), f(n.b)
    return n if c is n.condition and a is n.a and b is n.b else build.select(c, a, b)


def _cast(n: Cast, f: Visit) -> Expr:
    a = f(n.a)
    return n if a is n.a else build.cast(n.dtype.partition("x")[0], a)


def _call(n: Call, f: Visit) -> Expr:
    args = _each(n.args, f)
    if args is n.args:
        return n
    if n.name == "if_then_else":
        return build.if_then_else(*args)
    return Call(n.name, args, n.dtype)


def _reduce(n: Reduce, f: Visit) -> Expr:
    value, condition, axes = f(n.value), f(n.condition), _each(n.axes, f)
    if value is n.value and condition is n.condition and axes is n.axes:
        return n
    return Reduce(n.combine, value, axes, condition, n.identity, n.dtype)


def _ramp(n: Ramp, f: Visit) -> Expr:
    base, stride = f(n.base), f(n.stride)
    return n if base is n.base and stride is n.stride else Ramp(base, stride, n.lanes, n.dtype)


def _broadcast(n: Broadcast, f: Visit) -> Expr:
    value = f(n.value)
    return n if value is n.value else build.broadcast(value, n.lanes)


def _shuffle(n: Shuffle, f: Visit) -> Expr:
    vectors = _each(n.vectors, f)
    return n if vectors is n.vectors else Shuffle(vectors, n.lanes, n.dtype)


def _for(n: For, f: Visit) -> Stmt:
    extent, body = f(n.extent), f(n.body)
    if extent is n.extent and body is n.body:
        return n
    return For(n.var, extent, n.kind, body, n.annotations)


def _iter(n: IterVar, f: Visit) -> IterVar:
    extent, binding = f(n.extent), f(n.binding)
    if extent is n.extent and binding is n.binding:
        return n
    return IterVar(n.var, extent, n.kind, binding)


def _region(n: Region, f: Visit) -> Region:
    minimum, extent = _each(n.minimum, f), _each(n.extent, f)
    if minimum is n.minimum and extent is n.extent:
        return n
    return Region(n.buffer, minimum, extent)


def _block(n: Block, f: Visit) -> Stmt:
    iters, predicate = _each(n.iters, f), f(n.predicate)
    reads, writes = _each(n.reads, f), _each(n.writes, f)
    init = None if n.init is None else f(n.init)
    body = f(n.body)
    same = (
        iters is n.iters
        and predicate is n.predicate
        and reads is n.reads
        and writes is n.writes
        and init is n.init
        and body is n.body
    )
    if same:
        return n
    return Block(n.name, iters, reads, writes, body, init, predicate, n.allocs, n.annotations)


def _store(n: Store, f: Visit) -> Stmt:
    indices, value = _each(n.indices, f), f(n.value)
    return n if indices is n.indices and value is n.value else Store(n.buffer, indices, value)


def _if(n: If, f: Visit) -> Stmt:
    condition, then = f(n.condition), f(n.then)
    otherwise = None if n.otherwise is None else f(n.otherwise)
    if condition is n.condition and then is n.then and otherwise is n.otherwise:
        return n
    return If(condition, then, otherwise)


def _let(n: Let, f: Visit) -> Stmt:
    value, body = f(n.value), f(n.body)
    return n if value is n.value and body is n.body else Let(n.var, value, body)


def _seq(n: Seq, f: Visit) -> Stmt:
    stmts = _each(n.stmts, f)
    return n if stmts is n.stmts else build.seq(stmts)


def _evaluate(n: Evaluate, f: Visit) -> Stmt:
    value = f(n.value)
    return n if value is n.value else Evaluate(value)


_REBUILD: dict[type, Callable[[Any, Visit], Any]] = {
    Load: _load,
    Binary: _binary,
    Compare: _compare,
    Not: _not,
    Select: _select,
    Cast: _cast,
    Call: _call,
    Reduce: _reduce,
    Ramp: _ramp,
    Broadcast: _broadcast,
    Shuffle: _shuffle,
    For: _for,
    IterVar: _iter,
    Region: _region,
    Block: _block,
    Store: _store,
    If: _if,
    Let: _let,
    Seq: _seq,
    Evaluate: _evaluate,
}


def _block_children(n: Block) -> tuple[Node, ...]:
    init = () if n.init is None else (n.init,)
    return (*n.iters, n.predicate, *n.reads, *n.writes, *init, n.body)


# A table, since passes spend most time on walking, and `match` tries case by case.
_CHILDREN: dict[type, Callable[[Any], tuple[Node, ...]]] = {
    Load: lambda n: n.indices,
    Binary: lambda n: (n.a, n.b),
    Compare: lambda n: (n.a, n.b),
    Not: lambda n: (n.a,),
    Cast: lambda n: (n.a,),
    Broadcast: lambda n: (n.value,),
    Evaluate: lambda n: (n.value,),
    Select: lambda n: (n.condition, n.a, n.b),
    Call: lambda n: n.args,
    Reduce: lambda n: (*n.axes, n.value, n.condition),
    Ramp: lambda n: (n.base, n.stride),
    Shuffle: lambda n: n.vectors,
    For: lambda n: (n.extent, n.body),
    IterVar: lambda n: (n.extent, n.binding),
    Region: lambda n: (*n.minimum, *n.extent),
    Block: _block_children,
    Store: lambda n: (*n.indices, n.value),
    If: lambda n: (
        (n.condition, n.then) if n.otherwise is None else (n.condition, n.then, n.otherwise)
    ),
    Let: lambda n: (n.value, n.body),
    Seq: lambda n: n.stmts,
    PrimFunc: lambda n: (n.body,),
}


def children(n: Node) -> tuple[Node, ...]:
    """The direct children, in printed order (a For's and an IterVar's own variable left out)."""
    found = _CHILDREN.get(type(n))
    return () if found is None else found(n)


def walk(n: Node, seen: set[Node] | None = None) -> Iterator[Node]:
    """n and everything below it, parents first, each node once: an expression may occur in
    many places. Nodes in `seen` are left out; nodes that are met are added to it."""
    seen = set() if seen is None else seen
    stack = [n]
    pop, push, below, add = stack.pop, stack.extend, _CHILDREN.get, seen.add
    while stack:
        top = pop()
        if top in seen:
            continue
        add(top)
        yield top
        found = below(type(top))
        if found is not None:
            push(found(top)[::-1])


def evaluated(n: Node) -> tuple[Node, ...]:
    """The direct children that are evaluated whenever n is: not both sides of an if_then_else."""
    found = children(n)
    return found[:1] if isinstance(n, Call) and n.name == "if_then_else" else found


def bottom_up(
    n: Node, done: Container[Node], below: Callable[[Node], Sequence[Node]] = children
) -> Iterator[Any]:
    """n and everything below it, children first, each node once, without the nodes in `done`. The
    caller adds each node to `done` before it takes the next."""
    stack = [n]
    pop, push = stack.pop, stack.extend
    while stack:
        top = stack[-1]
        if top in done:
            pop()
            continue
        left = [child for child in below(top) if child not in done]
        if left:
            push(left[::-1])
        else:
            pop()
            yield top


# From so many nested calls on, an expression is rewritten from its leaves up. Each call takes some
# six frames. Python allows 1,000, and two rewritings may run at a time.
DEEP = 40


def once(visit: Visit) -> Visit:
    """Wraps a rewriting function: it sees each expression once, and expressions may have any depth.
    What `visit` makes of an expression must not depend on its place. If it does, on the loops
    around for example, each scope needs its own function.
    """
    made: dict[Node, Any] = {}
    depth = 0

    def visited(n: Any) -> Any:
        nonlocal depth
        if not isinstance(n, Expr):
            return visit(n)
        found = made.get(n)
        if found is None:
            if depth == DEEP:
                for m in bottom_up(n, made):
                    made[m] = visit(m)
                return made[n]
            depth += 1
            found = made[n] = visit(n)
            depth -= 1
        return found

    return visited


_INNER: dict[type, Callable[[Any], tuple[Stmt, ...]]] = {
    For: lambda n: (n.body,),
    Block: lambda n: (n.body,) if n.init is None else (n.init, n.body),
    If: lambda n: (n.then,) if n.otherwise is None else (n.then, n.otherwise),
    Let: lambda n: (n.body,),
    Seq: lambda n: n.stmts,
    PrimFunc: lambda n: (n.body,),
}


def inner_statements(n: Node) -> tuple[Stmt, ...]:
    """The statements among the direct children, in printed order."""
    found = _INNER.get(type(n))
    return () if found is None else found(n)


def statements(n: Node) -> Iterator[Stmt]:
    """n's statements, parents first; expressions are not entered."""
    stack: list[Node] = [n]
    while stack:
        top = stack.pop()
        if isinstance(top, Stmt):
            yield top
        found = _INNER.get(type(top))
        if found is not None:
            stack.extend(reversed(found(top)))


def substitute(n: N, values: Mapping[Var, Expr]) -> N:
    """n with variables replaced. Values must have the variables' dtypes."""
    if not values:
        return n

    @once
    def visit(m: Any) -> Any:
        if type(m) is Var:
            return values.get(m, m)
        return rebuild(m, visit)

    return cast(N, visit(n))


def replace_buffers(n: N, buffers: Mapping[Buffer, Buffer]) -> N:
    """n with every use of a buffer (accesses, regions, allocations) turned to another."""
    if not buffers:
        return n

    @once
    def visit(m: Any) -> Any:
        match m:
            case Load(buffer, indices) if buffer in buffers:
                return build.load(buffers[buffer], tuple(visit(i) for i in indices))
            case Store(buffer, indices, value) if buffer in buffers:
                return Store(buffers[buffer], tuple(visit(i) for i in indices), visit(value))
            case Region(buffer, minimum, extent) if buffer in buffers:
                return Region(buffers[buffer], minimum, extent)
            case Block() if any(b in buffers for b in m.allocs):
                allocs = tuple(buffers.get(b, b) for b in m.allocs)
                inner = rebuild(m, visit)
                return with_fields(inner, allocs=allocs)
        return rebuild(m, visit)

    return cast(N, visit(n))


def with_fields(n: N, **changes: Any) -> N:
    """A copy of a node with some fields changed (dataclasses.replace, spelled for nodes)."""
    return type(n)(**{**fields_of(n), **changes})


def fields_of(n: Node) -> dict[str, Any]:
    """The node's fields, by name."""
    return {name: getattr(n, name) for name in n.__dataclass_fields__}  # type: ignore[attr-defined]


def free_vars(n: Node) -> set[Var]:
    """Variables used in n that n does not bind."""
    used: set[Var] = set()
    bound: set[Var] = set()
    for m in walk(n):
        match m:
            case Var():
                used.add(m)
            case For(var) | Let(var) | IterVar(var):
                bound.add(var)
    return used - bound


def symbols_of(b: Buffer) -> list[Var]:
    """The variables in a buffer's shape and strides."""
    extents = [n for n in (*b.shape, *(b.strides or ())) if isinstance(n, Expr)]
    return [n for extent in extents for n in walk(extent) if isinstance(n, Var)]


def given_vars(func: PrimFunc) -> list[Var]:
    """The variables that the parameters give: scalars, and symbols of buffers."""
    return [v for p in func.params for v in ([p] if isinstance(p, Var) else symbols_of(p))]


def loads(n: Node) -> Iterator[Load]:
    return (m for m in walk(n) if isinstance(m, Load))
