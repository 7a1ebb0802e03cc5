"""A model's call table: the structures of mlc_runtime.h with their values, in the order in which C
needs them. A Table writes them: as C (c_model), or as data of an object (c_data)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from math import prod
from typing import Protocol, Union

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


class StepKind(IntEnum):
    """An mlc_step_kind."""

    CALL = 0
    LOOP = 1
    BRANCH = 2


@dataclass(frozen=True, slots=True)
class Size:
    """A size_t."""

    value: int


@dataclass(frozen=True, slots=True)
class Wide:
    """An int64_t."""

    value: int


class Pointer:
    """A pointer, as its table writes it."""


NULL = None
Field = Union[int, Size, Wide, Pointer, None, "Structure"]  # int: a number of 32 bits
Structure = tuple[Field, ...]


class Table(Protocol):
    """Writes arrays. What they point to is written before them."""

    def text(self, text: str) -> Pointer: ...

    def kernel(self, name: str) -> Pointer: ...

    def data(self, name: str, content: bytes) -> Pointer: ...

    def array(self, name: str, rows: Sequence[Field]) -> Field:
        """Adds rows to the array of that name. Returns a pointer to the first of them."""


def model_table(t: Table, metadata: Metadata, called: str) -> dict[str, Field]:
    """Writes everything that an mlc_model points to. Returns the mlc_model's fields, in order."""
    model = metadata.model
    assert model is not None
    calls = t.array("calls", [_call(t, call, metadata) for call in model.calls])
    layers = t.array("layers", [t.text(call.layer) for call in model.calls])
    steps, procedures = _procedures(t, model)
    inputs = t.array("inputs", [_tensor(t, p) for p in model.inputs])
    outputs = t.array("outputs", [_tensor(t, p) for p in model.outputs])
    sizes = t.array("sizes", _sizes(model)) if model.extents else NULL
    weights_hash = t.data("weights_hash", model.weights_hash) if model.weights_bytes else NULL
    arena, memory = arena_and_memory(metadata)
    return {
        "name": t.text(called),
        "target": t.text(metadata.target),
        "input_count": len(model.inputs),
        "output_count": len(model.outputs),
        "call_count": len(model.calls),
        "inputs": inputs,
        "outputs": outputs,
        "calls": calls,
        "layers": layers,
        "steps": steps,
        "procedures": procedures,
        "arena_bytes": Size(arena),
        "memory_bytes": Size(memory),
        "weights_bytes": Size(model.weights_bytes),
        "weights_hash": weights_hash,
        "size_count": len(_sizes(model)),
        "sizes": sizes,
    }


def _sizes(model: Model) -> list[Structure]:
    """An mlc_size of each input that says a dynamic size; none is less than 0."""
    return [
        (number, Wide(0), Wide(model.extents[p.name]))
        for number, p in enumerate(model.inputs)
        if p.name in model.extents
    ]


def arena_and_memory(metadata: Metadata) -> tuple[int, int]:
    """Bytes of the aligned arena, alone and with the largest workspace."""
    assert metadata.model is not None
    arena = -(-metadata.model.arena_bytes // ALIGNMENT) * ALIGNMENT
    return arena, arena + max((k.workspace for k in metadata.kernels.values()), default=0)


def _call(t: Table, call: Call, metadata: Metadata) -> Structure:
    """An mlc_call."""
    kernel = metadata.kernels[call.kernel]
    tasks = kernel.tasks if isinstance(kernel.tasks, int) else 1
    extents: Field = NULL
    if kernel.most:
        most = t.array("most", [Wide(n) for n in kernel.most])
        extents = t.array("extents", [(len(kernel.most), kernel.task_scalar, most, NULL)])
    return _places(t, t.kernel(call.kernel), call.args, tasks, extents)


def _places(
    t: Table, kernel: Field, args: Sequence[Arg | None], tasks: int = 0, extents: Field = NULL
) -> Structure:
    """An mlc_call of arguments; a missing one becomes the begin of the arena."""
    every = [arg or Arg(0, 0, 0, 0) for arg in args]
    operands = t.array("operands", [(arg.space, arg.index, Size(arg.offset)) for arg in every])
    moved = [(n, loop, Wide(step)) for n, arg in enumerate(every) for loop, step in arg.strides]
    strides = t.array("strides", moved) if moved else NULL
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
    rows = list(zip(firsts, counts, strict=False))
    return t.array("steps", steps), t.array("procedures", rows)


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


def _step(t: Table, step: Step, begin: int) -> Structure:
    """An mlc_step."""
    match step:
        case Loop(number, turns, procedure, condition, turn, count):
            every = (condition, turn, count)
            flags = (int(place is not None) for place in every)
            places = _places(t, NULL, every)
            return StepKind.LOOP, begin, number, turns, procedure, 0, *flags, places
        case Branch(condition, procedure, otherwise):
            places = _places(t, NULL, (condition, None, None))
            return StepKind.BRANCH, begin, 0, 0, procedure, otherwise, 1, 0, 0, places
        case int():
            return StepKind.CALL, begin, 0, 0, 0, 0, 0, 0, 0, _places(t, NULL, ())


def _tensor(t: Table, p: Param) -> Structure:
    """An mlc_tensor."""
    shape = t.array("shapes", [Size(int(n)) for n in p.shape])
    return t.text(p.name), t.text(p.dtype), len(p.shape), shape, Size(param_bytes(p))


def param_bytes(p: Param) -> int:
    """The bytes of a tensor with a fixed shape."""
    size = 2 if p.dtype == "bfloat16" else np.dtype(p.dtype).itemsize
    return prod(int(n) for n in p.shape) * size
