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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_targets.object_format import Metadata

from ..codegen.c import c_kernels
from ..files.unfinished import write_whole
from .c_table import Field, Pointer, Size, StepKind, Wide, model_table
from .export import begun, finished

if TYPE_CHECKING:
    from ..codegen import Library
    from .save import Savable

ROW = 32  # bytes of weights on a line
ARRAYS = {  # of the call table, each after those it points to: name, C type
    "operands": "mlc_operand", "strides": "mlc_stride", "most": "int64_t",
    "extents": "mlc_extents", "calls": "mlc_call", "layers": "char *const", "steps": "mlc_step",
    "procedures": "mlc_procedure", "shapes": "size_t", "inputs": "mlc_tensor",
    "outputs": "mlc_tensor", "weights_hash": "uint8_t", "sizes": "mlc_size",
}  # fmt: skip
SAME_ORDER = """\
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the weights are for little-endian machines"
#endif"""


def export_c(folder: str | Path, model: Savable, library: Library, name: str = "") -> Path:
    """Writes a model as C, called `name` or its own name, into a folder, made if need be. Returns
    the header's path. Raises ArtifactError, CodegenError, InstallError, OSError."""
    to, called, described = begun(folder, model, name)
    kernels, symbols = c_kernels(library, f"{called}.h", (called, f"{called}_weights", *ARRAYS))
    table = table_text(model.metadata, symbols, called)
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


@dataclass(frozen=True, slots=True)
class Expression(Pointer):
    """A pointer as C."""

    text: str


class Text:
    """A Table of C. symbols: of the kernels."""

    def __init__(self, symbols: Mapping[str, str]) -> None:
        self.symbols = symbols
        self.rows: dict[str, list[str]] = {name: [] for name in ARRAYS}

    def text(self, text: str) -> Expression:
        return Expression(_string(text))

    def kernel(self, name: str) -> Expression:
        return Expression(self.symbols[name])

    def data(self, name: str, content: bytes) -> Expression:
        self.rows[name].append(", ".join(map(str, content)))
        return Expression(name)

    def array(self, name: str, rows: Sequence[Field]) -> Expression:
        at = len(self.rows[name])
        self.rows[name] += map(_field, rows)
        return Expression(f"&{name}[{at}]" if rows else "NULL")

    def __str__(self) -> str:
        """The arrays. C has no empty ones."""
        return "\n\n".join(
            f"static const {ARRAYS[name]} {name}[] = {{\n{_lines(rows)}\n}};"
            for name, rows in self.rows.items()
            if rows
        )


def table_text(metadata: Metadata, symbols: Mapping[str, str], called: str) -> str:
    """An mlc_model, after the arrays it points to."""
    text = Text(symbols)
    fields = model_table(text, metadata, called)
    lines = _lines(f".{name} = {_field(field)}" for name, field in fields.items())
    return f"{text}\n\nconst mlc_model {called} = {{\n{lines}\n}};"


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(f"    {row}," for row in rows)


def _field(field: Field) -> str:
    match field:
        case StepKind():
            return f"MLC_{field.name}"
        case Expression(text):
            return text
        case Size(value) | Wide(value):
            return str(value)
        case tuple():
            return f"{{{', '.join(map(_field, field))}}}"
        case None:
            return "NULL"
        case _:
            return str(field)


def _string(text: str) -> str:
    """A C string of the text's UTF-8; an octal escape ends after three digits."""
    plain = (
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()
    )
    return f'"{"".join(plain)}"'
