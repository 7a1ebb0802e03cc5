"""Structural equality and hashing: two programs are equal when they differ in names alone.

A node is flattened into one tuple of plain values, with variables and buffers numbered in the
order in which they are met; equality and the hash follow from it.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

from .nodes import Block, Buffer, Const, Expr, For, IRModule, IterVar, Let, Node, PrimFunc, Var


def fingerprint(n: Node, *, free_by_identity: bool = False) -> tuple[Any, ...]:
    """n as a flat tuple. Free variables and buffers are numbered too, unless `free_by_identity`:
    then they stand for themselves (expressions within one program are compared so)."""
    out: list[Any] = []
    numbers: dict[Any, int] = {}
    counter = itertools.count()

    def name(thing: Any) -> None:
        if thing not in numbers:
            numbers[thing] = next(counter)
            if isinstance(thing, Buffer):
                out.extend((thing.dtype, thing.scope, thing.alignment))
                dims(thing.shape)
                dims(thing.strides or ())
            else:
                out.append(thing.dtype)
        out.append(numbers[thing])

    def dims(shape: tuple[Any, ...]) -> None:
        out.append(len(shape))
        for extent in shape:
            value(extent)

    def value(v: Any) -> None:
        match v:
            case Var() | Buffer():
                if free_by_identity and v not in numbers:
                    out.append(v)
                else:
                    name(v)
            case Const():
                out.extend((type(v.value).__name__, repr(v.value), v.dtype))
            case For(var) | Let(var) | IterVar(var):
                # Bound anew: two loops in sequence may share a variable and mean two.
                numbers[var] = next(counter)
                out.append(var.dtype)
                fields(v)
            case PrimFunc():
                out.append("PrimFunc")
                for param in v.params:
                    name(param)
                value(v.attrs)
                value(v.body)
            case IRModule():
                for key in sorted(v.functions):
                    out.append(key)
                    out.extend(fingerprint(v.functions[key]))  # they may share variables
            case Node():
                fields(v)
            case tuple():
                out.append(len(v))
                for item in v:
                    value(item)
            case None | str() | int() | float():
                out.append(v)
            case _:  # annotations
                out.append(repr(sorted(v.items())))

    def fields(v: Any) -> None:
        out.append(type(v).__name__)
        for field in v.__dataclass_fields__:
            if field == "name" and isinstance(v, Block):
                continue
            value(getattr(v, field))

    value(n)
    return tuple(out)


def structural_equal(a: Node, b: Node) -> bool:
    """Equal up to the names of functions, blocks, variables and buffers."""
    return a is b or fingerprint(a) == fingerprint(b)


def same_expr(a: Expr, b: Expr) -> bool:
    """The same expression over the same variables and buffers."""
    return a is b or (
        a.dtype == b.dtype
        and fingerprint(a, free_by_identity=True) == fingerprint(b, free_by_identity=True)
    )


def structural_hash(n: Node) -> str:
    """BLAKE2b-128 of the fingerprint, in hex: stable across processes and hash seeds."""
    text = repr(fingerprint(n)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
