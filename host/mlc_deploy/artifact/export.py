"""`export`: a model as part of a C program. For a model called digits, a folder gets

    digits.o         kernels and call table; position-independent, so also for a PIE or a .so
    digits.h         declarations, sizes, and how to call it
    digits.weights   to be read at run time (mlc_weights_read), or mapped
    digits_weights.o instead of digits.weights, if they are embedded
    mlc_runtime.c    the executor, C11, to be compiled with the program
    mlc_runtime.h    and its header

The program is built from them: cc main.c mlc_runtime.c digits.o -lm

Every symbol begins with the model's name, so that one program can link several models. Only the
model and its weights are visible outside of the program or library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

from mlc_targets.object_format import ALIGNMENT, Metadata, Model, Param

from ..board.runtime_files import executor_files
from ..codegen.c_fixed import RESERVED
from ..codegen.c_text import identifier
from ..codegen.elf import (
    ALLOC,
    ATTRIBUTES,
    GLOBAL,
    LOCAL,
    OBJECT,
    PROGBITS,
    UNDEFINED,
    WRITE,
    Object,
    Section,
    Symbol,
    read_object,
    without_tables,
    write_object,
)
from ..files.unfinished import write_whole
from .c_data import model_data
from .c_table import arena_and_memory, param_bytes
from .save import Savable, refuse_host_calls

HIDDEN = 2  # visibility: not outside of the program or shared object
C_TYPES = {
    "float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t",
    "bfloat16": "uint16_t",
}  # fmt: skip


def export(
    folder: str | Path, model: Savable, name: str = "", *, embed_weights: bool = False
) -> Path:
    """Writes a model, called `name` or its own name, into a folder, made if need be. Returns the
    header's path. Raises ArtifactError, InstallError, OSError."""
    to, called, described = begun(folder, model, name)
    kernels = read_object(model.object_bytes)
    write_whole(to / f"{called}.o", write_object(linkable(kernels, model.metadata, called)))
    if model.weights_bytes and embed_weights:
        weights = write_object(weights_object(kernels, bytes(model.weights_bytes), called))
        write_whole(to / f"{called}_weights.o", weights)
    elif model.weights_bytes:
        write_whole(to / f"{called}.weights", model.weights_bytes)
    embedded = bool(model.weights_bytes) and embed_weights
    return finished(to, called, model.metadata, described, embedded)


def begun(folder: str | Path, model: Savable, name: str) -> tuple[Path, str, Model]:
    """Makes the folder of an export. Returns it, the model's name in C, and its description."""
    refuse_host_calls(model)
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    described = model.metadata.model
    assert described is not None
    return to, symbol_of(name or model.name), described


def finished(to: Path, called: str, metadata: Metadata, model: Model, embedded: bool) -> Path:
    """Writes the executor and the model's header. Returns the header's path."""
    for file in executor_files():
        write_whole(to / file.name, file.read_bytes())
    header = to / f"{called}.h"
    write_whole(header, header_text(called, metadata, model, embedded))
    return header


def symbol_of(name: str) -> str:
    """The model's name in C and of its files. A name that C, its library or the executor uses gets
    "model_" in front."""
    called = identifier(name)
    taken = called in RESERVED or called.startswith(("_", "mlc_"))
    return f"model_{called.lstrip('_')}" if taken else called


# ---- Objects ----


def linkable(kernels: Object, metadata: Metadata, called: str) -> Object:
    """A board's object of kernels, with the call table for C programs in place of the board's."""
    sections = without_tables(kernels)
    table, model_at = model_data(kernels.machine, metadata, called)
    content, number = bytes(table.content), len(sections)
    locals_ = [s for s in kernels.symbols if s.binding == LOCAL]
    others = [s for s in kernels.symbols if s.binding != LOCAL]
    begin = Symbol(f"{called}.table", LOCAL, OBJECT, number, 0, len(content))
    whole = Symbol(called, GLOBAL, OBJECT, number, model_at, len(content) - model_at)
    symbols = (
        *locals_,
        begin,
        *(s if s.section == UNDEFINED else _own(s, called) for s in others),
        whole,
    )
    defined = {s.name: n for n, s in enumerate(symbols) if s.section != UNDEFINED}
    moved = {
        section: tuple(
            replace(r, symbol=r.symbol + (r.symbol >= len(locals_))) for r in relocations
        )
        for section, relocations in kernels.relocations.items()
    }
    kernel_symbols = {k: defined[f"{called}_{k}"] for k in metadata.kernels}
    moved[number] = table.relocations(len(locals_), kernel_symbols)
    data = Section(".data.rel.ro", PROGBITS, WRITE | ALLOC, content, ALIGNMENT)
    return replace(kernels, sections=(*sections, data), symbols=symbols, relocations=moved)


def weights_object(kernels: Object, weights: bytes, called: str) -> Object:
    """An object of constant data, for the machine of `kernels`."""
    attributes = (s for s in without_tables(kernels) if s.type == ATTRIBUTES)
    sections = (
        Section(""),
        Section(".rodata", PROGBITS, ALLOC, weights, ALIGNMENT),
        *attributes,
        Section(".note.GNU-stack", PROGBITS),
    )
    symbol = Symbol(f"{called}_weights", GLOBAL, OBJECT, 1, 0, len(weights))
    return Object(kernels.machine, kernels.flags, sections, (Symbol(""), symbol), {})


def _own(symbol: Symbol, called: str) -> Symbol:
    return replace(symbol, name=f"{called}_{symbol.name}", visibility=HIDDEN)


# ---- The header ----


def header_text(called: str, metadata: Metadata, model: Model, embedded: bool) -> str:
    """The header that a C program includes."""
    guard, prefix = f"MLC_MODEL_{called.upper()}_H", called.upper()
    defines: list[tuple[str, object]] = [
        ("MEMORY_BYTES", arena_and_memory(metadata)[1]),
        ("WEIGHTS_BYTES", model.weights_bytes),
        ("INPUTS", len(model.inputs)),
        ("OUTPUTS", len(model.outputs)),
    ]
    lines = [
        f"/* The model {called}, compiled for {metadata.target}.",
        " *",
        *(f" *   input  {n}  {_line(p)}" for n, p in enumerate(model.inputs)),
        *(f" *   output {n}  {_line(p)}" for n, p in enumerate(model.outputs)),
        *_about_states(model),
        *_about_extents(model),
        " *",
        " * mlc_runtime.h says how to run it. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        '#include "mlc_runtime.h"',
        "",
        *(f"#define {prefix}_{name} {value}" for name, value in defines),
        "",
        *_tensor_defines(prefix, "INPUT", model.inputs),
        *_tensor_defines(prefix, "OUTPUT", model.outputs),
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"extern const mlc_model {called};",
    ]
    if embedded:
        lines.append(f"extern const unsigned char {called}_weights[{prefix}_WEIGHTS_BYTES];")
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]
    return "\n".join(lines) + "\n"


def _about_states(model: Model) -> list[str]:
    if not model.states:
        return []
    pairs = (f" *   {_comment(p.name)} is {_comment(p.state)}" for p in model.states.values())
    return [
        " *",
        " * These outputs are states: a run reads them as the run before left them. Their memory",
        " * stays the same from run to run, and is zero before the first.",
        *pairs,
    ]


def _about_extents(model: Model) -> list[str]:
    if not model.extents:
        return []
    return [
        " *",
        " * These are known at run time; the input or output of the name holds each. A tensor has",
        " * room for the most of them. The elements of its true shape come first, without gaps.",
        *(f" *   {_comment(name)} is at most {most}." for name, most in model.extents.items()),
    ]


def _line(p: Param) -> str:
    return f"{_comment(p.name)}: {p}"


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ").replace("\\", "/")


def _tensor_defines(prefix: str, kind: str, params: Iterable[Param]) -> list[str]:
    """Macros with the number, elements, bytes and C type of each tensor."""
    lines, taken = [], set[str]()
    for number, p in enumerate(params):
        name = identifier(p.name).upper()
        name = f"{name}_{number}" if name in taken else name
        taken.add(name)
        whole = f"{prefix}_{kind}_{name}"
        lines += [
            f"#define {whole} {number}",
            f"#define {whole}_ELEMENTS {prod(int(n) for n in p.shape)}",
            f"#define {whole}_BYTES {param_bytes(p)}",
            f"#define {whole}_TYPE {C_TYPES.get(p.dtype, f'{p.dtype}_t')}",
            "",
        ]
    return lines
