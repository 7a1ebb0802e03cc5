"""A whole model as C11. For a model called digits, `--target c --emit c --output DIR` writes

    digits.c            kernels and call table
    digits_weights.c    the weights, as constants: in flash where a machine has it
    digits.h            declarations, sizes, and how to call it
    mlc_runtime.c       the executor
    mlc_runtime.h       and its header

Any C11 compiler for a little-endian machine takes them: cc main.c digits*.c mlc_runtime.c -lm.
With -DMLC_NO_FILES the executor needs neither files nor a heap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_targets.object_format import Arg, Branch, Call, Loop, Metadata, Model, Param, Step

from ..codegen.c import c_kernels
from ..files.unfinished import write_whole
from .c_table import arena_and_memory, begins_of, param_bytes
from .export import begun, finished

if TYPE_CHECKING:
    from ..codegen import Library
    from .save import Savable

ROW = 32  # bytes of weights on a line
TABLE = (
    "operands strides most extents calls layers steps procedures shapes inputs outputs weights_hash"
).split()
SAME_ORDER = """\
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the weights are for little-endian machines"
#endif"""


def export_c(folder: str | Path, model: Savable, library: Library, name: str = "") -> Path:
    """Writes a model as C, called `name` or its own name, into a folder, made if need be. Returns
    the header's path. Raises ArtifactError, CodegenError, InstallError, OSError."""
    to, called, described = begun(folder, model, name)
    kernels, symbols = c_kernels(library, f"{called}.h", (called, f"{called}_weights", *TABLE))
    table = "\n\n".join(_Table(model.metadata, described, symbols, called).parts())
    write_whole(to / f"{called}.c", f"{kernels}\n\n{table}\n")
    if model.weights_bytes:
        write_whole(to / f"{called}_weights.c", weights_text(called, bytes(model.weights_bytes)))
    return finished(to, called, model.metadata, described, bool(model.weights_bytes))


def weights_text(called: str, weights: bytes) -> str:
    rows = (weights[at : at + ROW] for at in range(0, len(weights), ROW))
    lines = "\n".join("    " + "".join(f"{b}," for b in row) for row in rows)
    return (
        f'#include "{called}.h"\n\n{SAME_ORDER}\n\n'
        f"_Alignas(MLC_ALIGNMENT) const unsigned char {called}_weights[{len(weights)}] = {{\n"
        f"{lines}\n}};\n"
    )


class _Table:
    """An mlc_model, and the arrays it points to, as C."""

    def __init__(
        self, metadata: Metadata, model: Model, symbols: dict[str, str], called: str
    ) -> None:
        self.metadata, self.model, self.symbols, self.called = metadata, model, symbols, called
        self.operands: list[str] = []
        self.strides: list[str] = []
        self.most: list[str] = []
        self.extents: list[str] = []

    def parts(self) -> Iterator[str]:
        """The arrays, each after those it points to, and then the model."""
        model = self.model
        calls = [self.call(call) for call in model.calls]
        steps, procedures = self.procedures()
        yield from _array("mlc_operand", "operands", self.operands)
        yield from _array("mlc_stride", "strides", self.strides)
        yield from _array("int64_t", "most", self.most)
        yield from _array("mlc_extents", "extents", self.extents)
        yield from _array("mlc_call", "calls", calls)
        layers = [_string(call.layer) for call in model.calls]
        yield from _array("char *const", "layers", layers)
        yield from _array("mlc_step", "steps", steps)
        yield from _array("mlc_procedure", "procedures", procedures)
        shapes: list[str] = []
        tensors = {
            kind: [_tensor(p, shapes) for p in params]
            for kind, params in (("inputs", model.inputs), ("outputs", model.outputs))
        }
        yield from _array("size_t", "shapes", shapes)
        for kind, rows in tensors.items():
            yield from _array("mlc_tensor", kind, rows)
        if model.weights_bytes:
            yield from _array("uint8_t", "weights_hash", [", ".join(map(str, model.weights_hash))])
        arena, memory = arena_and_memory(self.metadata)
        fields = {
            "name": _string(self.called),
            "target": _string(self.metadata.target),
            "input_count": len(model.inputs),
            "output_count": len(model.outputs),
            "call_count": len(model.calls),
            "inputs": _name("inputs", model.inputs),
            "outputs": _name("outputs", model.outputs),
            "calls": _name("calls", calls),
            "layers": _name("layers", layers),
            "steps": _name("steps", steps),
            "procedures": _name("procedures", procedures),
            "arena_bytes": arena,
            "memory_bytes": memory,
            "weights_bytes": model.weights_bytes,
            "weights_hash": "weights_hash" if model.weights_bytes else "NULL",
        }
        lines = "\n".join(f"    .{key} = {value}," for key, value in fields.items())
        yield f"const mlc_model {self.called} = {{\n{lines}\n}};"

    def call(self, call: Call) -> str:
        kernel = self.metadata.kernels[call.kernel]
        tasks = kernel.tasks if isinstance(kernel.tasks, int) else 1
        extents = "NULL"
        if kernel.most:
            extents = f"&extents[{len(self.extents)}]"
            most = _at("most", self.most, len(kernel.most))
            self.extents.append(f"{{{len(kernel.most)}, {kernel.task_scalar}, {most}, NULL}}")
            self.most += map(str, kernel.most)
        return self.places(self.symbols[call.kernel], call.args, tasks, extents)

    def places(
        self, kernel: str, args: Sequence[Arg | None], tasks: int = 0, extents: str = "NULL"
    ) -> str:
        """An mlc_call; a missing argument becomes the begin of the arena."""
        every = [arg or Arg(0, 0, 0, 0) for arg in args]
        moved = [(n, loop, step) for n, arg in enumerate(every) for loop, step in arg.strides]
        where = _at("operands", self.operands, len(every))
        steps = _at("strides", self.strides, len(moved))
        self.operands += (f"{{{a.space}, {a.index}, {a.offset}}}" for a in every)
        self.strides += (f"{{{n}, {loop}, {step}}}" for n, loop, step in moved)
        return f"{{{kernel}, {where}, {len(every)}, {tasks}, {extents}, {steps}, {len(moved)}}}"

    def procedures(self) -> tuple[list[str], list[str]]:
        if not self.model.procedures:
            return [], []
        steps: list[str] = []
        procedures = []
        begins = begins_of(self.model.procedures)
        for procedure, own in zip(self.model.procedures, begins, strict=True):
            procedures.append(f"{{{len(steps)}, {len(procedure)}}}")
            steps += (self.step(s, begin) for s, begin in zip(procedure, own, strict=True))
        return steps, procedures

    def step(self, step: Step, begin: int) -> str:
        match step:
            case Loop(number, turns, procedure, condition, turn, count):
                every = (condition, turn, count)
                flags = ", ".join(str(int(place is not None)) for place in every)
                places = self.places("NULL", every)
                return (
                    f"{{MLC_LOOP, {begin}, {number}, {turns}, {procedure}, 0, {flags}, {places}}}"
                )
            case Branch(condition, procedure, otherwise):
                places = self.places("NULL", (condition, None, None))
                return f"{{MLC_BRANCH, {begin}, 0, 0, {procedure}, {otherwise}, 1, 0, 0, {places}}}"
            case int():
                return f"{{MLC_CALL, {begin}, 0, 0, 0, 0, 0, 0, 0, {self.places('NULL', ())}}}"


def _array(kind: str, name: str, rows: Sequence[str]) -> Iterator[str]:
    """Nothing without rows: C has no empty arrays."""
    if rows:
        lines = "\n".join(f"    {row}," for row in rows)
        yield f"static const {kind} {name}[] = {{\n{lines}\n}};"


def _name(name: str, rows: Sequence[object]) -> str:
    return name if rows else "NULL"


def _at(name: str, rows: Sequence[str], count: int) -> str:
    return f"&{name}[{len(rows)}]" if count else "NULL"


def _tensor(p: Param, shapes: list[str]) -> str:
    where = _at("shapes", shapes, len(p.shape))
    shapes += map(str, p.shape)
    return f"{{{_string(p.name)}, {_string(p.dtype)}, {len(p.shape)}, {where}, {param_bytes(p)}}}"


def _string(text: str) -> str:
    """A C string of the text's UTF-8; an octal escape ends after three digits."""
    plain = (
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()
    )
    return f'"{"".join(plain)}"'
