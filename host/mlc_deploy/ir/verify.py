"""The verifier: what holds of every well-formed PrimFunc."""

from __future__ import annotations

import os

from .dtypes import dtype_of
from .nodes import (
    Binary,
    Block,
    Buffer,
    Compare,
    Expr,
    For,
    IterVar,
    Let,
    Load,
    Node,
    PrimFunc,
    Region,
    Store,
    Var,
)
from .rewrite import children, given_vars, statements, walk


class VerifyError(AssertionError):
    """A pass or primitive made a malformed program: a defect of ours, shown with the program."""


def verify(func: PrimFunc, after: str = "construction") -> PrimFunc:
    """func, if it is well-formed; else VerifyError naming the pass and the first defect."""
    defects = _defects(func)
    if defects:
        raise VerifyError(f"after {after}: {defects[0]}\n{func}")
    return func


def verify_each(func: PrimFunc, after: str) -> PrimFunc:
    """verify, but only under MLC_VERIFY=1, as in the tests. Otherwise a program is verified only
    where lowering begins and ends."""
    return verify(func, after) if os.environ.get("MLC_VERIFY") == "1" else func


def _defects(func: PrimFunc) -> list[str]:
    """What is wrong with a program, in the order of one walk over it."""
    found: list[str] = []
    loops: set[str] = set()
    blocks: set[str] = set()
    scope: frozenset[Var] = frozenset()
    seen: set[Node] = set()  # the expressions that were looked at in this scope
    given: set[Buffer] = {
        *func.buffers,
        *(b for n in statements(func.body) if isinstance(n, Block) for b in n.allocs),
    }
    scheduled = any(isinstance(n, Block) and n.iters for n in statements(func.body))

    def visit(n: Node, bound: frozenset[Var]) -> None:
        match n:
            case Expr():
                expression(n, bound)
                return
            case For():
                if scheduled and n.var.name in loops:
                    found.append(f"two loops are called '{n.var.name}'")
                loops.add(n.var.name)
                visit(n.extent, bound)
                visit(n.body, bound | {n.var})
                return
            case Let():
                visit(n.value, bound)
                visit(n.body, bound | {n.var})
                return
            case Block():
                block(n, bound)
                return
            case IterVar():
                return
            case Region(buffer):
                declared(buffer)
            case Store(buffer, indices, value):
                declared(buffer)
                if len(indices) != buffer.ndim:
                    found.append(
                        f"store to '{buffer.name}' has {len(indices)} indices of {buffer.ndim}"
                    )
                if dtype_of(value.dtype).scalar != buffer.dtype:
                    found.append(f"store of {value.dtype} to '{buffer.name}' of {buffer.dtype}")
        for child in children(n):
            visit(child, bound)

    def declared(buffer: Buffer) -> None:
        if buffer not in given:
            given.add(buffer)  # told once
            found.append(f"buffer '{buffer.name}' is neither a parameter nor allocated")

    def expression(e: Expr, bound: frozenset[Var]) -> None:
        nonlocal scope, seen
        if bound is not scope:
            scope, seen = bound, set()
        for n in walk(e, seen):
            if isinstance(n, Var):
                if n not in bound:
                    found.append(f"variable '{n.name}' is used outside its loop")
            elif isinstance(n, Load):
                declared(n.buffer)
                if len(n.indices) != n.buffer.ndim:
                    found.append(
                        f"load of '{n.buffer.name}' has {len(n.indices)} indices of {n.buffer.ndim}"
                    )
            elif isinstance(n, (Binary, Compare)) and n.a.dtype != n.b.dtype:
                found.append(f"'{n}': {n.a.dtype} {n.op} {n.b.dtype}")

    def block(n: Block, bound: frozenset[Var]) -> None:
        if n.name in blocks:
            found.append(f"two blocks are called '{n.name}'")
        blocks.add(n.name)
        found.extend(
            f"block '{n.name}' allocates parameter '{b.name}'"
            for b in n.allocs
            if b in func.buffers
        )
        for i in n.iters:
            visit(i.binding, bound)
        visit(n.predicate, bound)
        inside = bound | {i.var for i in n.iters}
        for part in (*n.reads, *n.writes, n.init, n.body):
            if part is not None:
                visit(part, inside)

    visit(func.body, frozenset(given_vars(func)))
    return found
