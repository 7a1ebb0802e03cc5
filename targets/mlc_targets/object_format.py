"""The object format, which the compiler writes and a client reads.

An object is a relocatable ELF file. Its section METADATA_SECTION holds one msgpack map, a
MetadataMap, which describes the object. device_runtime/include/mlc_abi.h has the same for the
program on the board; a test compares the two. The runtime refuses an object of another ABI_VERSION;
an object whose model has procedures is of PROGRAM_ABI.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NotRequired, TypedDict, get_args

import msgpack

ABI_VERSION = 1
PROGRAM_ABI = 2
METADATA_SECTION = ".mlc"
MAX_OPERANDS = 64  # of a kernel, and of a model: its inputs and outputs
ALIGNMENT = 64  # bytes: of every tensor, and of every offset in the arena and in the weights

Space = Literal["arena", "weights", "input", "output"]
SPACES: tuple[Space, ...] = get_args(Space)  # where an operand lies; objects have the index here

StepKind = Literal["loop", "branch"]
STEPS: tuple[StepKind, ...] = get_args(StepKind)  # steps but calls; objects have the index here

Buffer = bytes | memoryview

# ----------------------------------------------------------------------------- the map's own form


class ParamMap(TypedDict):
    name: str
    dtype: str
    shape: Sequence[int | str]
    output: NotRequired[bool]  # only for kernels
    align: NotRequired[int]  # only for kernels: bytes, if less than ALIGNMENT
    state: NotRequired[str]  # only for models' outputs: the input whose value in the next run it is
    open: NotRequired[list[str]]  # only for models: the name of each dynamic extent, "" if known


class SignatureMap(TypedDict):
    """A kernel's entry without its name."""

    params: list[ParamMap]
    scalars: list[str]
    tasks: int | str
    workspace: int
    most: NotRequired[list[int]]  # only for models' kernels: the largest value of each scalar


class KernelMap(SignatureMap):
    name: str


Operand = tuple[int, ...]  # space, index, offset, size; then (loop, stride) pairs


# The number of a call; or (index of "loop" in STEPS, the loop's number, iterations, procedure,
# operand of the condition or None, operand of the turn's number or None, operand of the number of
# iterations or None); or (index of "branch" in STEPS, operand of the condition, procedure,
# procedure otherwise).
StepMap = int | tuple[int | Operand | None, ...]


class ModelMap(TypedDict):
    inputs: list[ParamMap]
    outputs: list[ParamMap]
    arena: int
    weights: int
    weights_hash: bytes
    calls: list[tuple[int, str, list[Operand]]]  # kernel, layer, operands and then scalars
    procedures: NotRequired[list[list[StepMap]]]
    extents: NotRequired[dict[str, int]]  # those known only at run time: the largest value of each


class MetadataMap(TypedDict):
    abi: int
    target: str
    machine: str
    features: list[str]
    kernels: list[KernelMap]
    model: NotRequired[ModelMap]


# -------------------------------------------------------------------------------- the map as values


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor that a kernel or model takes or gives. A `str` extent is a symbolic dimension.

    `state`, of an output that keeps its value for the next run: the model's input that it is then.
    `open`, of a model with dynamic extents: the name of each extent, "" for a known one;
    `shape` is then the largest.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    output: bool = False
    state: str = ""
    open: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = self.open or ("",) * len(self.shape)
        shown = (name or str(n) for n, name in zip(self.shape, names, strict=True))
        return f"{self.dtype}[{', '.join(shown)}]"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the object. Its `tasks`, a number or a symbolic dimension, may run in parallel;
    each thread has `workspace` bytes of scratch memory. `most`, of a model's kernel: the largest
    value of each of `scalars`."""

    name: str
    params: tuple[Param, ...]
    tasks: int | str
    workspace: int
    scalars: tuple[str, ...] = ()
    most: tuple[int, ...] = ()

    @property
    def task_scalar(self) -> int:
        """The index of the scalar that is the number of tasks; -1 if that is known."""
        return self.scalars.index(self.tasks) if isinstance(self.tasks, str) else -1


@dataclass(frozen=True, slots=True)
class Arg:
    """Where an argument's bytes are: `offset` and `size` in the arena, the weights, an input... In
    each iteration of a loop it moves by the bytes in `strides`, pairs (loop, bytes)."""

    space: int  # the number in SPACES
    index: int  # which input or output
    offset: int
    size: int
    strides: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the call table: `kernel` by name, for the model's `layer`. `args`: parameters,
    then scalars."""

    kernel: str
    layer: str
    args: tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs `procedure` up to `turns` times, while the condition (if any) holds. `count`, if given,
    has the number of iterations. The number of the current iteration is written to `turn`."""

    number: int
    turns: int
    procedure: int
    condition: Arg | None
    turn: Arg | None
    count: Arg | None


@dataclass(frozen=True, slots=True)
class Branch:
    """Runs one procedure or the other."""

    condition: Arg
    procedure: int
    otherwise: int


Step = int | Loop | Branch  # the number of a call


@dataclass(frozen=True)
class Model:
    """The object's model: its inputs, outputs and calls. The calls run in order, or as the first of
    `procedures` says, if any. `extents` are those known only at run time, with the largest value of
    each; an input or output of the name, int64[], has the value."""

    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    calls: tuple[Call, ...]
    arena_bytes: int
    weights_bytes: int
    weights_hash: bytes  # BLAKE2b-256; empty without weights
    procedures: tuple[tuple[Step, ...], ...] = ()
    extents: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def states(self) -> dict[str, Param]:
        """The outputs that keep their value for the next run, by the names of their inputs."""
        return {p.state: p for p in self.outputs if p.state}

    @cached_property
    def arguments(self) -> dict[str, Param]:
        """The inputs of a run by name, without extents, which the others' shapes give."""
        return {p.name: p for p in self.inputs if p.name not in self.extents}

    @cached_property
    def results(self) -> dict[str, Param]:
        """The outputs of a run by name, without extents, which the others' shapes have."""
        return {p.name: p for p in self.outputs if p.name not in self.extents}


@dataclass(frozen=True, slots=True)
class Metadata:
    """An object's description of itself."""

    target: str
    machine: str
    features: frozenset[str]
    kernels: dict[str, Kernel]
    model: Model | None


def parse_metadata(data: bytes) -> Metadata:
    """Reads a metadata section. Raises LookupError, TypeError, ValueError on other data."""
    root: MetadataMap = msgpack.unpackb(data, raw=False)
    kernels = [
        Kernel(
            str(k["name"]),
            _params(k["params"]),
            k["tasks"],
            int(k["workspace"]),
            tuple(map(str, k["scalars"])),
            tuple(map(int, k.get("most", ()))),
        )
        for k in root["kernels"]
    ]
    model = None
    if found := root.get("model"):
        model = Model(
            _params(found["inputs"]),
            tuple(replace(p, output=True) for p in _params(found["outputs"])),
            tuple(
                Call(kernels[kernel].name, str(layer), tuple(map(_arg, args)))
                for kernel, layer, args in found["calls"]
            ),
            int(found["arena"]),
            int(found["weights"]),
            bytes(found["weights_hash"]),
            tuple(tuple(map(_step, steps)) for steps in found.get("procedures", ())),
            {str(name): int(most) for name, most in found.get("extents", {}).items()},
        )
    return Metadata(
        str(root["target"]),
        str(root["machine"]),
        frozenset(map(str, root["features"])),
        {kernel.name: kernel for kernel in kernels},
        model,
    )


def _params(rows: Sequence[ParamMap]) -> tuple[Param, ...]:
    return tuple(
        Param(
            str(r["name"]),
            str(r["dtype"]),
            tuple(r["shape"]),
            bool(r.get("output", False)),
            str(r.get("state", "")),
            tuple(map(str, r.get("open", ()))),
        )
        for r in rows
    )


def _arg(operand: Sequence[int]) -> Arg:
    space, index, offset, size, *strides = operand
    pairs = zip(strides[::2], strides[1::2], strict=True)
    return Arg(space, index, offset, size, tuple(pairs))


def _step(step: Any) -> Step:
    match step:
        case int():
            return step
        case [0, number, turns, procedure, condition, turn, count]:
            places = (None if p is None else _arg(p) for p in (condition, turn, count))
            return Loop(number, turns, procedure, *places)
        case [1, condition, procedure, otherwise]:
            return Branch(_arg(condition), procedure, otherwise)
    raise ValueError(f"{step!r} is not a step")


def section_of(elf: Buffer, name: str = METADATA_SECTION) -> bytes:
    """Content of the first section of a name in a little-endian object of 32 or 64 bits.

    Raises ValueError that says what is wrong with the object.
    """
    data = memoryview(elf)
    if bytes(data[:4]) != b"\x7fELF" or len(data) < 64 or data[5] != 1 or data[4] not in (1, 2):
        raise ValueError("it is not a little-endian ELF object")
    wide = data[4] == 2
    try:
        (table,) = struct.unpack_from("<Q" if wide else "<I", data, 40 if wide else 32)
        size, count, names = struct.unpack_from("<HHH", data, 58 if wide else 46)
        row = struct.Struct("<IIQQQQ" if wide else "<IIIIII")
        if size < row.size:
            raise ValueError("its section headers are too short")
        rows = [row.unpack_from(data, table + n * size) for n in range(count)]
        strings = _content(data, rows[names])
        for found in rows[1:]:
            if strings[found[0] : strings.index(b"\0", found[0])] == name.encode():
                return _content(data, found)
    except (struct.error, IndexError, OverflowError):
        raise ValueError("its section headers lie outside it") from None
    raise ValueError(f"it has no section '{name}'")


def _content(data: memoryview, row: tuple[int, ...]) -> bytes:
    """Content of a section. row is its header: name, type, flags, address, offset, size."""
    if row[4] + row[5] > len(data):
        raise ValueError("a section lies outside it")
    return bytes(data[row[4] : row[4] + row[5]])
