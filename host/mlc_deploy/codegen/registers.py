"""The contents of local buffers while straight-line code is emitted.

Every product loads and stores an accumulator of the tile. LLVM would find out that these are
registers. Emission saves most of that work: a load takes the value of the last store in the same
block, and a store that a later one covers is left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir as ll

from ..ir import Buffer, dtype_of

Value = Any


@dataclass(slots=True)
class _Held:
    """The values in a buffer at the end of a block, by their index. All have one dtype, and their
    indices are multiples of its lanes, so that none overlap."""

    block: ll.Block
    dtype: str
    values: dict[int, Value] = field(default_factory=dict)
    stores: dict[int, Value] = field(default_factory=dict)  # not read from memory since


class Registers:
    """shared: the buffers that others may read or write; their contents are unknown."""

    def __init__(self, shared: Collection[Buffer]) -> None:
        self.shared = shared
        self.held: dict[Buffer, _Held] = {}
        self.covered: set[Value] = set()  # stores that later ones cover

    def get(self, block: ll.Block, buffer: Buffer, at: int, dtype: str) -> Value | None:
        """The value of a load in the block; None where it has to be loaded."""
        held = self.held.get(buffer)
        if held is None or held.block is not block:
            return None
        if held.dtype != dtype:
            self.forget(buffer)
            return None
        value = held.values.get(at)
        if value is None and at % dtype_of(dtype).lanes:
            self.forget(buffer)
        return value

    def put(
        self, block: ll.Block, buffer: Buffer, at: int, dtype: str, value: Value, store: Value
    ) -> None:
        """A value was stored at a constant index."""
        held = self.held.get(buffer)
        known = at % dtype_of(dtype).lanes == 0 and buffer not in self.shared
        # float16 that was computed in float32 is rounded where it is stored
        if not known or hasattr(value, "unrounded"):
            self.forget(buffer)
            return
        if held is None or held.block is not block or held.dtype != dtype:
            held = self.held[buffer] = _Held(block, dtype)
        if (before := held.stores.get(at)) is not None:
            self.covered.add(before)
        held.values[at], held.stores[at] = value, store

    def forget(self, buffer: Buffer) -> None:
        """The buffer is read or written otherwise."""
        self.held.pop(buffer, None)

    def finish(self, module: ll.Module) -> None:
        """Removes the covered stores."""
        if self.covered:
            for function in module.functions:
                for block in function.blocks:
                    block.instructions = [i for i in block.instructions if i not in self.covered]
