"""Every second element of memory: two loads of vectors rather than one load per element."""

from __future__ import annotations

from typing import Any

from ...ir import Load, PrimFunc, Ramp, Shuffle, const, contents, is_const, once, rebuild
from ...passes.context import optional
from ..bodies import with_body
from .target import target_of


@optional(level=1)
def split_strided_loads(func: PrimFunc) -> PrimFunc:
    """A[Ramp(e, 2, n)]   =>   even lanes of A[Ramp(e, 1, n)], odd lanes of A[Ramp(e + n - 1, 1, n)]

    The second vector begins an element early, so that nothing beyond the last element is read.
    Not on 32-bit ARM, which loads single lanes as cheaply.
    """
    target = target_of(func)
    if target is None or target.arch == "arm" or not contents(func.body).strided:
        return func

    @once
    def visit(m: Any) -> Any:
        match m:
            case Load(buffer, (Ramp(base, stride, lanes, kind),)) if (
                is_const(stride, 2) and lanes % 2 == 0
            ):
                halves = tuple(
                    Load(buffer, (Ramp(first, const(1, first.dtype), lanes, kind),), m.dtype)
                    for first in (base, base + (lanes - 1))
                )
                early = range(0, lanes, 2)
                return Shuffle(halves, (*early, *(lanes + 1 + n for n in early)), m.dtype)
        return rebuild(m, visit)

    body = visit(func.body)
    return with_body(func, body)
