"""A compiled module: its kernels, LLVM IR, assembly, and the ELF object with its metadata."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import msgpack
from llvmlite import ir as ll

from mlc_targets import Target

from ..errors import CodegenError
from ..ir import Buffer, Dim, Var
from ..ir.names import LIBRARY_NAMES
from ..lower import Kernel
from .c import c_source
from .llvm import emit_kernel, scalars_of, scratch_layout
from .tasks import tasks

ABI_VERSION = 1
SECTION = ".mlc"
_llvm_lock = threading.Lock()  # LLVM's global context is not safe to share between threads


@dataclass(frozen=True)
class Library:
    """One module for one target. `model` is the call table of a whole model, where it holds one.

    Objects are identical bytes for identical kernels, whatever the hash seed.
    """

    name: str
    kernels: tuple[Kernel, ...]
    target: Target
    model: Mapping[str, Any] | None = None

    @cached_property
    def llvm_ir(self) -> str:
        """The module as LLVM IR, before optimisation."""
        return str(_module(self))

    @cached_property
    def object_bytes(self) -> bytes:
        with _llvm_lock:
            machine, module = _optimized(self.llvm_ir, self.target)
            return bytes(machine.emit_object(module))

    @property
    def weights_bytes(self) -> bytes:
        """A library of kernels has no weights; a compiled model has."""
        return b""

    @cached_property
    def assembly(self) -> str:
        with _llvm_lock:
            machine, module = _optimized(self.llvm_ir, self.target)
            return str(machine.emit_assembly(module))

    @cached_property
    def optimized_ir(self) -> str:
        with _llvm_lock:
            return str(_optimized(self.llvm_ir, self.target)[1])

    def save(self, path: str | Path) -> Path:
        """Writes the module by its suffix: .o object, .s assembly, .ll LLVM IR, .c C source and,
        beside it, its header."""
        to = Path(path)
        match to.suffix:
            case ".o":
                to.write_bytes(self.object_bytes)
            case ".s":
                to.write_text(self.assembly)
            case ".ll":
                to.write_text(self.optimized_ir)
            case ".c":
                header = to.with_suffix(".h")
                source, declarations = c_source(self, header.name)
                to.write_text(source)
                header.write_text(declarations)
            case other:
                raise CodegenError(
                    f"no format is known by the suffix '{other}'",
                    where=str(to),
                    mend="a path that ends in .o, .s, .ll or .c",
                )
        return to


def metadata(library: Library) -> dict[str, Any]:
    """What the section ".mlc" says; the format stands in device_runtime/include/mlc_abi.h."""
    found: dict[str, Any] = {
        "abi": ABI_VERSION,
        "target": str(library.target),
        "machine": library.target.arch,
        "features": sorted(library.target.required_features),
        "kernels": [_signature(kernel) for kernel in library.kernels],
    }
    if library.model is not None:
        found["model"] = dict(library.model)
    return found


def _signature(kernel: Kernel) -> dict[str, Any]:
    scalars = scalars_of(kernel)
    return {
        "name": kernel.name,
        "params": [
            {
                "name": p.name,
                "dtype": p.dtype,
                "shape": [_extent(n) for n in p.shape],
                "output": p.name in kernel.outputs,
            }
            for p in kernel.params
            if isinstance(p, Buffer)
        ],
        "scalars": [v.name for v in scalars],
        "tasks": _extent(tasks(kernel)),
        "workspace": scratch_layout(kernel)[1],
    }


def _extent(n: Dim) -> int | str:
    if isinstance(n, int):
        return n
    if isinstance(n, Var):
        return n.name
    raise CodegenError(f"a parameter's dimension is '{n}': a number or one variable is needed")


def _module(library: Library) -> ll.Module:
    taken = sorted(LIBRARY_NAMES.intersection(k.name for k in library.kernels))
    if taken:
        raise CodegenError(
            f"kernel '{taken[0]}' has the name of a C function that generated code may call",
            mend=f"another name, such as {taken[0]}_kernel",
        )
    module = ll.Module(library.name, context=ll.Context())
    module.triple = library.target.mtriple
    for kernel in library.kernels:
        emit_kernel(module, kernel, library.target)
    packed = msgpack.packb(metadata(library))
    array = ll.ArrayType(ll.IntType(8), len(packed))
    section = ll.GlobalVariable(module, array, "mlc.metadata")
    section.global_constant = True
    section.initializer = ll.Constant(array, bytearray(packed))
    section.section = SECTION
    section.linkage = "private"
    kept = ll.ArrayType(ll.PointerType(), 1)
    used = ll.GlobalVariable(module, kept, "llvm.compiler.used")
    used.linkage = "appending"
    used.section = "llvm.metadata"
    used.initializer = ll.Constant(kept, [section])
    return module


def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _optimized(text: str, target: Target) -> tuple[Any, Any]:
    """(target machine, optimised module) for LLVM IR as text."""
    _initialize()
    machine = llvm.Target.from_triple(target.mtriple).create_target_machine(
        cpu=target.llvm_cpu,
        features=target.llvm_features,
        opt=target.opt_level,
        reloc="static",
        codemodel="small",
    )
    module = llvm.parse_assembly(text)
    module.verify()
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=target.opt_level)
    options.slp_vectorization = False
    options.loop_unrolling = False  # schedules say what is unrolled
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine, module


def compile_kernels(
    name: str, kernels: Sequence[Kernel], target: Target, model: Mapping[str, Any] | None = None
) -> Library:
    """A library of kernels, whose names must be unique; CodegenError for what the target lacks."""
    names = [kernel.name for kernel in kernels]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise CodegenError(f"two kernels are called '{min(twice)}'")
    return Library(name, tuple(kernels), target, model)
