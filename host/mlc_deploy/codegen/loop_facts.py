"""What is asked of a loop before it is emitted."""

from __future__ import annotations

from ..ir import Call, For, Stmt, Store, statements, walk
from ..lower import PHASE


def stores_to_registers(s: Stmt) -> bool:
    """Whether all stores in s are to local buffers."""
    return all(n.buffer.scope == "local" for n in statements(s) if isinstance(n, Store))


def is_phase(s: For) -> bool:
    """Whether a loop is to be a function of its own: not where the kernel may return within it."""
    return PHASE in s.annotations and not any(
        isinstance(n, Call) and n.name == "ret" for n in walk(s)
    )
