"""What is asked of a loop before it is emitted."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_targets import Target

from ..ir import (
    Buffer,
    Call,
    For,
    Load,
    Ramp,
    Stmt,
    Store,
    distinct,
    dtype_of,
    same_expr,
    statements,
    walk,
)
from ..lower import PHASE


def stores_to_registers(s: Stmt) -> bool:
    """Whether all stores in s are to local buffers."""
    return all(n.buffer.scope == "local" for n in statements(s) if isinstance(n, Store))


def is_phase(s: For) -> bool:
    """Whether a loop is to be a function of its own: not where the kernel may return within it."""
    return PHASE in s.annotations and not any(
        isinstance(n, Call) and n.name == "ret" for n in distinct(s)
    )


def reread(loop: For, target: Target) -> list[Buffer]:
    """The buffers whose vectors an innermost loop that reads the same in every turn had better load
    again in each: where more of them than half of the registers would stay, and few registers are
    there, LLVM puts aside what it needs more often. Those that are used least, for their size."""
    if target.arch != "arm" or any(isinstance(s, For) for s in statements(loop.body)):
        return []
    written = {s.buffer for s in statements(loop.body) if isinstance(s, Store)}
    uses: dict[Buffer, list[Load]] = {}
    for n in walk(loop.body):
        if isinstance(n, Load) and isinstance(n.indices[0], Ramp) and n.buffer not in written:
            if not any(v is loop.var for v in walk(n.indices[0])):
                uses.setdefault(n.buffer, []).append(n)
    sizes = {b: sum(dtype_of(n.dtype).bits * dtype_of(n.dtype).lanes for n in _distinct(loads))
             for b, loads in uses.items()}
    found: list[Buffer] = []
    for b in sorted(uses, key=lambda b: len(uses[b]) / sizes[b]):
        if 3 * sum(sizes.values()) <= target.vector_registers * target.register_bits:
            break
        found.append(b)
        del sizes[b]
    return found


def _distinct(loads: Sequence[Load]) -> list[Load]:
    found: list[Load] = []
    for n in loads:
        if not any(same_expr(n, m) for m in found):
            found.append(n)
    return found
