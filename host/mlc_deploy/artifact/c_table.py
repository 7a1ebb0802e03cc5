"""A model's call table as the data that mlc_runtime.h declares: structures of one machine, with
relocations wherever one points to another. The model's own structure is the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from mlc_targets.object_format import ALIGNMENT, Call, Metadata, Param

from ..codegen.elf import AARCH64, ARM, X86_64, Relocation

POINTER = {ARM: 2, AARCH64: 257, X86_64: 1}  # R_ARM_ABS32, R_AARCH64_ABS64, R_X86_64_64


class Pointer(NamedTuple):
    """To an offset in the table, or (kernel) to a kernel of that name."""

    offset: int
    kernel: str = ""


class Size(NamedTuple):
    """A size_t."""

    value: int


Field = int | Size | Pointer | None  # a 32-bit number, a size_t, a pointer, NULL
NULL: Field = None


class Table:
    """The data as it grows."""

    def __init__(self, machine: int) -> None:
        self.machine = machine
        self.word = 4 if machine == ARM else 8
        self.content = bytearray()
        self.pointers: list[tuple[int, Pointer]] = []
        self.model = 0  # where the last structure begins
        self._texts: dict[str, Pointer] = {}

    def text(self, text: str) -> Pointer:
        """A string, which is there once."""
        if text not in self._texts:
            self._texts[text] = self.data(text.encode() + b"\0", 1)
        return self._texts[text]

    def data(self, content: bytes, alignment: int) -> Pointer:
        at = self._align(alignment)
        self.content += content
        return Pointer(at)

    def array(self, rows: Sequence[tuple[Field, ...]]) -> Pointer:
        """Structures one after the other, each field where C has it."""
        at = self._align(self.word)
        for row in rows:
            for field in row:
                self._add(field)
            self._align(self.word)
        return Pointer(at)

    def relocations(self, table: int, kernels: Mapping[str, int]) -> tuple[Relocation, ...]:
        """`table` is the number of the symbol at the data's beginning, kernels are theirs."""
        kind = POINTER[self.machine]
        return tuple(
            Relocation(
                at,
                kind,
                kernels[to.kernel] if to.kernel else table,
                None if self.machine == ARM else to.offset,
            )
            for at, to in self.pointers
        )

    def _add(self, field: Field) -> None:
        match field:
            case int():
                self._align(4)
                self.content += field.to_bytes(4, "little")
            case Size(value):
                self._align(self.word)
                self.content += value.to_bytes(self.word, "little")
            case Pointer():
                at = self._align(self.word)
                self.pointers.append((at, field))
                # 32-bit ARM's relocations add to what stands there, the others' replace it.
                self.content += field.offset.to_bytes(self.word, "little")
            case None:
                self._align(self.word)
                self.content += bytes(self.word)

    def _align(self, alignment: int) -> int:
        self.content += bytes(-len(self.content) % alignment)
        return len(self.content)


def model_table(machine: int, metadata: Metadata, called: str) -> Table:
    """An mlc_model, and before it all that it points to."""
    model = metadata.model
    assert model is not None
    t = Table(machine)
    calls = t.array([_call(t, call, metadata) for call in model.calls])
    layers = t.array([(t.text(call.layer),) for call in model.calls])
    inputs, outputs = (t.array([_tensor(t, p) for p in ps]) for ps in (model.inputs, model.outputs))
    weights_hash = t.data(model.weights_hash, 1) if model.weights_bytes else NULL
    arena, memory = arena_and_memory(metadata)
    t.model = t.array(
        [
            (
                t.text(called), t.text(metadata.target),
                len(model.inputs), len(model.outputs), len(model.calls),
                inputs, outputs, calls, layers,
                Size(arena), Size(memory), Size(model.weights_bytes), weights_hash,
            )
        ]
    ).offset  # fmt: skip
    return t


def arena_and_memory(metadata: Metadata) -> tuple[int, int]:
    """Bytes of the arena, aligned, and of it with the largest workspace."""
    assert metadata.model is not None
    arena = -(-metadata.model.arena_bytes // ALIGNMENT) * ALIGNMENT
    return arena, arena + max((k.workspace for k in metadata.kernels.values()), default=0)


def _call(t: Table, call: Call, metadata: Metadata) -> tuple[Field, ...]:
    """An mlc_call; what it points to stands before it, so this comes before its array."""
    operands = t.array([(arg.space, arg.index, Size(arg.offset)) for arg in call.args])
    tasks = int(metadata.kernels[call.kernel].tasks)
    return Pointer(0, call.kernel), operands, len(call.args), tasks, NULL


def _tensor(t: Table, p: Param) -> tuple[Field, ...]:
    """An mlc_tensor."""
    shape = t.array([(Size(int(n)),) for n in p.shape])
    return t.text(p.name), t.text(p.dtype), len(p.shape), shape, Size(param_bytes(p))


def param_bytes(p: Param) -> int:
    """Of a tensor whose shape is known."""
    size = 2 if p.dtype == "bfloat16" else np.dtype(p.dtype).itemsize
    return prod(int(n) for n in p.shape) * size
