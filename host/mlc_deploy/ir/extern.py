"""The user's functions that a kernel calls by name: C, or others with C's calling convention.

    call_extern("int32", "gemm", A, address_of(B[i, 0]), C, 64)

An argument is a number, or the address of an element. A buffer stands for the address of its first
element. The reads and writes of the block around the call must say what the function accesses: the
compiler cannot see into it. The linker resolves the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .build import const, expr
from .contents import contents
from .nodes import Buffer, Call, Expr, ExprLike, Load, Node
from .rewrite import walk

PREFIX = "extern."  # of the name of a Call
ADDRESS = "address_of"  # a Call of one Load, which is not executed
POINTER = "uint64"  # stands in for the dtype of an address: no arithmetic is done on it
NUMBERS = ("int32", "int64", "uint32", "uint64", "float32", "float64")
OWN = "kernel"  # the compiler's name for the function that it compiles

Reference = Callable[..., Any]


def call_extern(dtype: str, name: str, *args: ExprLike | Buffer) -> Expr:
    """The call of a function that returns a number of `dtype`. "void" becomes int32 here, since
    nobody reads the result.

    Raises TypeError for numbers of 8 and 16 bits: each machine passes them to C in another form.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name) or name == OWN:
        raise TypeError(f"call_extern of {name!r}\n  try: the name of a C function")
    result = "int32" if dtype == "void" else dtype
    if result not in NUMBERS:
        raise TypeError(
            f"call_extern: '{name}' gives {dtype}\n  try: one of void, {', '.join(NUMBERS)}"
        )
    given = tuple(_argument(name, a) for a in args)
    return Call(PREFIX + name, given, result)


def _argument(name: str, given: ExprLike | Buffer) -> Expr:
    if isinstance(given, Buffer):
        return address_of(given[(const(0),) * given.ndim])
    value = expr(given)
    if value.dtype not in NUMBERS:
        raise TypeError(
            f"call_extern: '{name}' is given '{value}', which is {value.dtype}\n"
            f"  try: .astype of one of {', '.join(NUMBERS)}, or its address"
        )
    return value


def address_of(element: Expr) -> Expr:
    """The address of an element: an argument of call_extern, and nothing else."""
    if not isinstance(element, Load):
        raise TypeError(f"address_of of '{element}'\n  try: address_of(A[0, 0])")
    return Call(ADDRESS, (element,), POINTER)


def extern_name(e: Node) -> str | None:
    """The name of the user's function that e calls; None for others."""
    return e.name[len(PREFIX) :] if isinstance(e, Call) and e.name.startswith(PREFIX) else None


def is_address(e: Node) -> bool:
    return isinstance(e, Call) and e.name == ADDRESS


def addressed(n: Node) -> frozenset[Buffer]:
    """The buffers whose addresses are passed to functions: they keep their layout, and the
    functions may write them."""
    if ADDRESS not in contents(n).calls:
        return frozenset()
    return frozenset(
        m.args[0].buffer
        for m in walk(n)
        if isinstance(m, Call) and m.name == ADDRESS and isinstance(m.args[0], Load)
    )


def externs_of(n: Node) -> frozenset[str]:
    """The functions that are called in n."""
    return frozenset(name for m in walk(n) if (name := extern_name(m)) is not None)


def from_element(array: Any, indices: tuple[int, ...]) -> Any:
    """What a reference gets for an address. If the element begins a row of the first dimension: the
    rows from there on. Else all elements from there on, flat."""
    if not any(indices[1:]):
        return array[indices[0] :] if indices else array
    flat = 0
    for index, extent in zip(indices, array.shape, strict=True):
        flat = flat * extent + index
    return array.reshape(-1)[flat:]
