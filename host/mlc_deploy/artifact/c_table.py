"""A model's call table as data: the structures of mlc_runtime.h in one machine's layout, with a
relocation for each pointer. The mlc_model is the last structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np

from mlc_targets.object_format import (
    ALIGNMENT,
    Arg,
    Branch,
    Call,
    Loop,
    Metadata,
    Model,
    Param,
    Step,
)

from ..codegen.elf import AARCH64, ARM, X86_64, Relocation

POINTER = {ARM: 2, AARCH64: 257, X86_64: 1}  # R_ARM_ABS32, R_AARCH64_ABS64, R_X86_64_64


class Pointer(NamedTuple):
    """A pointer to an offset in the table, or to the kernel of that name."""

    offset: int
    kernel: str = ""


class Size(NamedTuple):
    """A size_t."""

    value: int


class Wide(NamedTuple):
    """An int64_t."""

    value: int


Field = int | Size | Wide | Pointer | None  # a 32-bit number, a size_t, ..., a pointer, NULL
NULL: Field = None


class Table:
    """The data under construction."""

    def __init__(self, machine: int) -> None:
        self.machine = machine
        self.word = 4 if machine == ARM else 8
        self.content = bytearray()
        self.pointers: list[tuple[int, Pointer]] = []
        self.model = 0  # where the last structure begins
        self._texts: dict[str, Pointer] = {}

    def text(self, text: str) -> Pointer:
        """A string; equal strings are stored once."""
        if text not in self._texts:
            self._texts[text] = self.data(text.encode() + b"\0", 1)
        return self._texts[text]

    def data(self, content: bytes, alignment: int) -> Pointer:
        at = self._align(alignment)
        self.content += content
        return Pointer(at)

    def array(self, rows: Sequence[tuple[Field, ...]]) -> Pointer:
        """An array of structures, each field at its C offset."""
        wide = any(isinstance(field, Wide) for row in rows for field in row)
        at = self._align(8 if wide else self.word)
        for row in rows:
            for field in row:
                self._add(field)
            self._align(8 if any(isinstance(f, Wide) for f in row) else self.word)
        return Pointer(at)

    def relocations(self, table: int, kernels: Mapping[str, int]) -> tuple[Relocation, ...]:
        """table: the number of the symbol at the data's beginning; kernels: of the kernels'."""
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
                self.content += (field & 0xFFFFFFFF).to_bytes(4, "little")
            case Size(value):
                self._align(self.word)
                self.content += value.to_bytes(self.word, "little")
            case Wide(value):
                self._align(8)
                self.content += value.to_bytes(8, "little", signed=True)
            case Pointer():
                at = self._align(self.word)
                self.pointers.append((at, field))
                # 32-bit ARM's relocations add to this value, the others replace it.
                self.content += field.offset.to_bytes(self.word, "little")
            case None:
                self._align(self.word)
                self.content += bytes(self.word)

    def _align(self, alignment: int) -> int:
        self.content += bytes(-len(self.content) % alignment)
        return len(self.content)


def model_table(machine: int, metadata: Metadata, called: str) -> Table:
    """An mlc_model, after everything it points to."""
    model = metadata.model
    assert model is not None
    t = Table(machine)
    calls = t.array([_call(t, call, metadata) for call in model.calls])
    layers = t.array([(t.text(call.layer),) for call in model.calls])
    steps, procedures = _procedures(t, model)
    inputs, outputs = (t.array([_tensor(t, p) for p in ps]) for ps in (model.inputs, model.outputs))
    weights_hash = t.data(model.weights_hash, 1) if model.weights_bytes else NULL
    arena, memory = arena_and_memory(metadata)
    t.model = t.array(
        [
            (
                t.text(called), t.text(metadata.target),
                len(model.inputs), len(model.outputs), len(model.calls),
                inputs, outputs, calls, layers, steps, procedures,
                Size(arena), Size(memory), Size(model.weights_bytes), weights_hash,
            )
        ]
    ).offset  # fmt: skip
    return t


def arena_and_memory(metadata: Metadata) -> tuple[int, int]:
    """Bytes of the aligned arena, alone and with the largest workspace."""
    assert metadata.model is not None
    arena = -(-metadata.model.arena_bytes // ALIGNMENT) * ALIGNMENT
    return arena, arena + max((k.workspace for k in metadata.kernels.values()), default=0)


def _call(t: Table, call: Call, metadata: Metadata) -> tuple[Field, ...]:
    """An mlc_call. It adds the arrays it points to first, so call it before `array`."""
    kernel = metadata.kernels[call.kernel]
    tasks = kernel.tasks if isinstance(kernel.tasks, int) else 1
    extents: Field = NULL
    if kernel.most:
        most = t.array([(Wide(n),) for n in kernel.most])
        extents = t.array([(len(kernel.most), kernel.task_scalar, most, NULL)])
    return _places(t, Pointer(0, call.kernel), call.args, tasks, extents)


def _places(
    t: Table, kernel: Field, args: Sequence[Arg | None], tasks: int = 0, extents: Field = NULL
) -> tuple[Field, ...]:
    """An mlc_call of arguments; a missing one becomes the begin of the arena."""
    every = [arg or Arg(0, 0, 0, 0) for arg in args]
    operands = t.array([(arg.space, arg.index, Size(arg.offset)) for arg in every])
    moved = [(n, loop, Wide(step)) for n, arg in enumerate(every) for loop, step in arg.strides]
    strides = t.array(moved) if moved else NULL
    return kernel, operands, len(every), tasks, extents, strides, len(moved)


def _procedures(t: Table, model: Model) -> tuple[Field, Field]:
    """Arrays of mlc_step and mlc_procedure."""
    if not model.procedures:
        return NULL, NULL
    begins = begins_of(model.procedures)
    steps = [
        _step(t, step, begin)
        for procedure, own in zip(model.procedures, begins, strict=True)
        for step, begin in zip(procedure, own, strict=True)
    ]
    counts = [len(procedure) for procedure in model.procedures]
    firsts = accumulate(counts, initial=0)
    return t.array(steps), t.array(list(zip(firsts, counts, strict=False)))


def begins_of(procedures: Sequence[Sequence[Step]]) -> list[list[int]]:
    """The number of the first call in each step, or after it."""
    found: list[list[int]] = [[] for _ in procedures]
    following = 0

    def visit(number: int) -> None:
        nonlocal following
        for step in procedures[number]:
            found[number].append(step if isinstance(step, int) else following)
            match step:
                case Loop(procedure=inner):
                    visit(inner)
                case Branch(procedure=inner, otherwise=other):
                    visit(inner)
                    visit(other)
                case int():
                    following = step + 1

    visit(0)
    return found


def _step(t: Table, step: Step, begin: int) -> tuple[Field, ...]:
    """An mlc_step."""
    match step:
        case Loop(number, turns, procedure, condition, turn, count):
            every = (condition, turn, count)
            flags = (int(place is not None) for place in every)
            return 1, begin, number, turns, procedure, 0, *flags, *_places(t, NULL, every)
        case Branch(condition, procedure, otherwise):
            places = _places(t, NULL, (condition, None, None))
            return 2, begin, 0, 0, procedure, otherwise, 1, 0, 0, *places
        case int():
            return 0, begin, 0, 0, 0, 0, 0, 0, 0, *_places(t, NULL, ())


def _tensor(t: Table, p: Param) -> tuple[Field, ...]:
    """An mlc_tensor."""
    shape = t.array([(Size(int(n)),) for n in p.shape])
    return t.text(p.name), t.text(p.dtype), len(p.shape), shape, Size(param_bytes(p))


def param_bytes(p: Param) -> int:
    """The bytes of a tensor with a fixed shape."""
    size = 2 if p.dtype == "bfloat16" else np.dtype(p.dtype).itemsize
    return prod(int(n) for n in p.shape) * size
