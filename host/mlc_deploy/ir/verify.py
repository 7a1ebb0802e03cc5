"""The verifier: what holds of every well-formed PrimFunc."""

from __future__ import annotations

from collections.abc import Iterator

from .dtypes import dtype_of
from .nodes import Binary, Block, Compare, Expr, For, IterVar, Let, Load, PrimFunc, Store, Var
from .rewrite import children, walk


class VerifyError(AssertionError):
    """A pass or primitive made a malformed program: a defect of ours, shown with the program."""


def verify(func: PrimFunc, after: str = "construction") -> PrimFunc:
    """func, if it is well-formed; else VerifyError naming the pass and the first defect."""
    defect = next(_defects(func), None)
    if defect is not None:
        raise VerifyError(f"after {after}: {defect}\n{func}")
    return func


def _defects(func: PrimFunc) -> Iterator[str]:
    bound: set[Var] = {p for p in func.params if isinstance(p, Var)}
    for buffer in func.buffers:
        bound.update(
            v for extent in buffer.shape if isinstance(extent, Expr) for v in _vars(extent)
        )
        bound.update(v for s in buffer.strides or () if isinstance(s, Expr) for v in _vars(s))
    loops: set[str] = set()
    blocks: set[str] = set()
    scheduled = any(isinstance(n, Block) and n.iters for n in walk(func.body))
    for n in walk(func.body):
        match n:
            case For():
                if scheduled and n.var.name in loops:
                    yield f"two loops are called '{n.var.name}'"
                loops.add(n.var.name)
            case Block():
                if n.name in blocks:
                    yield f"two blocks are called '{n.name}'"
                blocks.add(n.name)
                for buffer in n.allocs:
                    if buffer in func.buffers:
                        yield f"block '{n.name}' allocates parameter '{buffer.name}'"
            case Store(buffer, indices, value):
                if len(indices) != buffer.ndim:
                    yield f"store to '{buffer.name}' has {len(indices)} indices of {buffer.ndim}"
                if dtype_of(value.dtype).scalar != buffer.dtype:
                    yield f"store of {value.dtype} to '{buffer.name}' of {buffer.dtype}"
            case Load(buffer, indices):
                if len(indices) != buffer.ndim:
                    yield f"load of '{buffer.name}' has {len(indices)} indices of {buffer.ndim}"
            case Binary(op, a, b) | Compare(op, a, b):
                if a.dtype != b.dtype:
                    yield f"'{n}': {a.dtype} {op} {b.dtype}"
    yield from _unbound(func.body, bound)


def _vars(e: Expr) -> Iterator[Var]:
    return (n for n in walk(e) if isinstance(n, Var))


def _unbound(n: object, bound: set[Var]) -> Iterator[str]:
    """Variables used outside what binds them."""
    match n:
        case Var():
            if n not in bound:
                yield f"variable '{n.name}' is used outside its loop"
            return
        case For():
            yield from _unbound(n.extent, bound)
            yield from _unbound(n.body, bound | {n.var})
            return
        case Let():
            yield from _unbound(n.value, bound)
            yield from _unbound(n.body, bound | {n.var})
            return
        case Block():
            for i in n.iters:
                yield from _unbound(i.binding, bound)
            yield from _unbound(n.predicate, bound)
            inside = bound | {i.var for i in n.iters}
            for part in (*n.reads, *n.writes, n.init, n.body):
                if part is not None:
                    yield from _unbound(part, inside)
            return
        case IterVar():
            return
    for child in children(n):  # type: ignore[arg-type]
        yield from _unbound(child, bound)
