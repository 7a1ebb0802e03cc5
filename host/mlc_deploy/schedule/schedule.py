"""The TensorIR face of the engine: a mutable handle on an immutable PrimFunc.

Every primitive is a function from PrimFunc to PrimFunc in a module beside this one. Handles are the
names of loops and blocks, which are unique and derived deterministically.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir import Block, Expr, For, IRModule, PrimFunc, statements, with_fields
from ..ir.nodes import Scope
from ..ir.verify import verify
from . import caching, location, loops, reduction
from .tree import block_at, blocks_in, find_block, loops_of, readers, writers

IS_SCHEDULED = "tir.is_scheduled"  # a function that carries it is lowered as it stands


class BlockRV(str):
    """A block, by name."""


class LoopRV(str):
    """A loop, by name."""


class Schedule:
    """Applies primitives to one function. A primitive either succeeds, or raises ScheduleError and
    changes nothing."""

    def __init__(self, mod: PrimFunc | IRModule, func: str = "main") -> None:
        self._func: PrimFunc = mod[func] if isinstance(mod, IRModule) else mod

    @property
    def func(self) -> PrimFunc:
        return self._func

    @property
    def mod(self) -> IRModule:
        return IRModule({self._func.name: self._func})

    def copy(self) -> Schedule:
        return Schedule(self._func)

    def show(self) -> None:
        print(self._func)

    def _set(self, func: PrimFunc, primitive: str) -> None:
        if IS_SCHEDULED not in func.attrs:
            func = with_fields(func, attrs={**func.attrs, IS_SCHEDULED: True})
        self._func = verify(func, primitive)

    # ------------------------------------------------------------------------------- looking

    def get_block(self, name: str) -> BlockRV:
        return BlockRV(block_at(find_block(self._func, name, "get_block")).name)

    def get_blocks(self) -> list[BlockRV]:
        """All blocks in program order, the root apart."""
        return [BlockRV(b.name) for b in blocks_in(self._func.body)]

    def get_loops(self, block: str) -> list[LoopRV]:
        """The loops around a block, outermost first."""
        path = find_block(self._func, block, "get_loops")
        return [LoopRV(loop.name) for loop in loops_of(path)]

    def get_producers(self, block: str) -> list[BlockRV]:
        target = self.block(block)
        found = [p for r in target.reads for p in writers(self._func, r.buffer)]
        return [BlockRV(b.name) for b in dict.fromkeys(found)]

    def get_consumers(self, block: str) -> list[BlockRV]:
        target = self.block(block)
        found = [c for w in target.writes for c in readers(self._func, w.buffer)]
        return [BlockRV(b.name) for b in dict.fromkeys(found)]

    def get_output_blocks(self) -> list[BlockRV]:
        outputs = set(self._func.buffers)
        return [
            BlockRV(b.name)
            for b in blocks_in(self._func.body)
            if any(w.buffer in outputs for w in b.writes)
        ]

    def block(self, name: str) -> Block:
        """The block itself, to look at."""
        return block_at(find_block(self._func, name, "get_block"))

    def loop(self, name: str) -> For:
        """The loop itself, to look at."""
        found = [s for s in statements(self._func.body) if isinstance(s, For) and s.name == name]
        return found[0]

    # --------------------------------------------------------------------------------- loops

    def split(self, loop: str, factors: Sequence[int | Expr | None]) -> list[LoopRV]:
        func, names = loops.split(self._func, loop, factors)
        self._set(func, "split")
        return [LoopRV(n) for n in names]

    def fuse(self, *order: str) -> LoopRV:
        func, name = loops.fuse(self._func, order)
        self._set(func, "fuse")
        return LoopRV(name)

    def reorder(self, *order: str) -> None:
        self._set(loops.reorder(self._func, order), "reorder")

    def add_unit_loop(self, at: str) -> LoopRV:
        func, name = loops.add_unit_loop(self._func, at)
        self._set(func, "add_unit_loop")
        return LoopRV(name)

    def parallel(self, loop: str) -> None:
        self._set(loops.set_kind(self._func, loop, "parallel"), "parallel")

    def vectorize(self, loop: str) -> None:
        self._set(loops.set_kind(self._func, loop, "vectorized"), "vectorize")

    def unroll(self, loop: str) -> None:
        self._set(loops.set_kind(self._func, loop, "unrolled"), "unroll")

    def annotate(self, at: str, key: str, value: Any) -> None:
        self._set(loops.annotate(self._func, at, key, value), "annotate")

    def unannotate(self, at: str, key: str) -> None:
        self._set(loops.annotate(self._func, at, key, None), "unannotate")

    # -------------------------------------------------------------------------------- blocks

    def compute_inline(self, block: str) -> None:
        self._set(location.compute_inline(self._func, block), "compute_inline")

    def reverse_compute_inline(self, block: str) -> None:
        self._set(location.reverse_compute_inline(self._func, block), "reverse_compute_inline")

    def compute_at(self, block: str, loop: str) -> None:
        self._set(location.compute_at(self._func, block, loop), "compute_at")

    def reverse_compute_at(self, block: str, loop: str) -> None:
        self._set(location.reverse_compute_at(self._func, block, loop), "reverse_compute_at")

    def decompose_reduction(self, block: str, loop: str) -> BlockRV:
        func, name = reduction.decompose_reduction(self._func, block, loop)
        self._set(func, "decompose_reduction")
        return BlockRV(name)

    def cache_read(self, block: str, index: int, scope: Scope) -> BlockRV:
        func, name = caching.cache_read(self._func, block, index, scope)
        self._set(func, "cache_read")
        return BlockRV(name)

    def cache_write(self, block: str, index: int, scope: Scope) -> BlockRV:
        func, name = caching.cache_write(self._func, block, index, scope)
        self._set(func, "cache_write")
        return BlockRV(name)

    def set_scope(self, block: str, index: int, scope: Scope) -> None:
        self._set(caching.set_scope(self._func, block, index, scope), "set_scope")
