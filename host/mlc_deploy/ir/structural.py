"""Structural equality and hashing: two programs are equal when they differ in names alone.

A node is flattened into one tuple of plain values, with variables and buffers numbered in the order
met. Equality and the hash follow from the tuple. A large expression is written once in its scope,
and by a number after that. Content decides what is written again, not identity.

Expressions within one program are compared by `content`, where variables and buffers stand for
themselves.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from .nodes import (
    Block,
    Buffer,
    Const,
    Dim,
    Expr,
    For,
    IRModule,
    IterVar,
    Let,
    Node,
    PrimFunc,
    Region,
    Var,
)
from .rewrite import bottom_up, children

# An expression of at least so many nodes, repeats counted, is written once.
LARGE = 256
MOST_NODES = 1 << 32  # nodes are counted up to this number

_END = object()  # of a scope


def fingerprint(n: Node) -> tuple[Any, ...]:
    """n as a flat tuple; free variables and buffers are numbered, too."""
    out: list[Any] = []
    numbers: dict[Any, int] = {}
    counter = itertools.count()
    told: dict[bytes, int] = {}  # the large expressions of this scope, by content
    left: list[Any] = [n]  # what is still to be written, the next thing last

    def fields(v: Any) -> None:
        out.append(type(v).__name__)
        names = [f for f in v.__dataclass_fields__ if not (f == "name" and isinstance(v, Block))]
        left.extend(getattr(v, f) for f in reversed(names))

    while left:
        v = left.pop()
        match v:
            case Var() | Buffer() if v in numbers:
                out.append(numbers[v])
            case Var():
                numbers[v] = next(counter)
                out.extend((v.dtype, numbers[v]))
            case Buffer():
                numbers[v] = next(counter)
                out.extend((v.dtype, v.scope, v.alignment))
                left.extend((numbers[v], v.strides or (), v.shape))
            case Const():
                out.extend((type(v.value).__name__, repr(v.value), v.dtype))
            case For(var) | Let(var) | IterVar(var):
                # A new number: two loops in sequence may share a variable.
                numbers[var] = next(counter)
                out.append(var.dtype)
                told.clear()
                left.append(_END)
                fields(v)
            case PrimFunc():
                out.append("PrimFunc")
                left.extend((v.body, v.attrs, *reversed(v.params)))
            case IRModule():
                for key in sorted(v.functions):
                    out.append(key)
                    out.extend(fingerprint(v.functions[key]))  # they may share variables
            case Expr():
                said, nodes = _facts(v)
                if nodes >= LARGE:
                    if said in told:
                        out.extend(("again", told[said]))
                        continue
                    told[said] = len(told)
                fields(v)
            case Node():
                fields(v)
            case tuple():
                out.append(len(v))
                left.extend(reversed(v))
            case None | str() | int() | float():
                out.append(v)
            case _ if v is _END:
                told.clear()
            case _:  # annotations
                out.append(repr(sorted(v.items())))
    return tuple(out)


def structural_equal(a: Node, b: Node) -> bool:
    """Equal up to the names of functions, blocks, variables and buffers."""
    return a is b or fingerprint(a) == fingerprint(b)


def structural_hash(n: Node) -> str:
    """BLAKE2b-128 of the fingerprint, in hex: stable across processes and hash seeds."""
    text = repr(fingerprint(n)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def same_expr(a: Expr, b: Expr) -> bool:
    """The same expression over the same variables and buffers."""
    return a is b or (a.dtype == b.dtype and content(a) == content(b))


def same_exprs(some: Sequence[Expr], others: Sequence[Expr]) -> bool:
    """The same expressions, one by one."""
    return len(some) == len(others) and all(map(same_expr, some, others))


def same_dim(a: Dim, b: Dim) -> bool:
    """The same number, or the same expression over the same variables."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        return same_expr(a, b)
    return not isinstance(a, Expr) and not isinstance(b, Expr) and a == b


def same_shape(some: Sequence[Dim], others: Sequence[Dim]) -> bool:
    """The same dimensions, one by one."""
    return len(some) == len(others) and all(map(same_dim, some, others))


def content(e: Expr) -> bytes:
    """A digest, equal for the same expressions over the same variables and buffers. It is valid in
    this process, while they live."""
    return _facts(e)[0]


def region_content(r: Region) -> tuple[Any, ...]:
    """As `content`, for a region."""
    return r.buffer, *map(content, r.minimum), *map(content, r.extent)


class _Noted:
    """The nodes with known facts."""

    def __contains__(self, n: object) -> bool:
        return not isinstance(n, Expr) or hasattr(n, "_facts")


_NOTED = _Noted()


def _facts(e: Expr) -> tuple[bytes, int]:
    """(content, number of nodes with repeats counted)."""
    found: tuple[bytes, int] | None = getattr(e, "_facts", None)
    if found is None:
        for n in bottom_up(e, _NOTED):
            below = [c._facts[1] for c in children(n) if isinstance(c, Expr)]
            facts = _digest(n), min(1 + sum(below), MOST_NODES)
            object.__setattr__(n, "_facts", facts)
        found = e._facts
    return found


def _digest(e: Expr) -> bytes:
    """The content of an expression whose children have known facts."""
    match e:
        case Var():
            return b"%d" % id(e)
        case Const(value, dtype):
            content: list[Any] = [type(value).__name__, repr(value), dtype]
        case _:
            content = [type(e).__name__]
            for name in e.__dataclass_fields__:  # type: ignore[attr-defined]
                field = getattr(e, name)
                content.extend(field if isinstance(field, tuple) else (field,))
    parts = [v._facts[0] if isinstance(v, Expr) else _plain(v) for v in content]
    whole = b"".join([b"%d:%b" % (len(part), part) for part in parts])
    return hashlib.blake2b(whole, digest_size=16).digest()


def _plain(v: Any) -> bytes:
    return b"%d" % id(v) if isinstance(v, Node) else str(v).encode()
