"""A compiled module: its kernels, LLVM IR, assembly, and the ELF object with its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgpack

from mlc_targets import Target
from mlc_targets.object_format import ABI_VERSION, PROGRAM_ABI, MetadataMap, ModelMap, SignatureMap

from ..errors import CodegenError
from ..files.unfinished import write_whole
from ..ir.names import LIBRARY_NAMES
from ..lower import Kernel
from .c import c_source
from .link import LinkedObject, link
from .machine_code import (
    KernelObject,
    compile_kernel,
    empty_object,
    llvm_module,
    optimized,
    signature,
)
from .merge import merge


@dataclass(frozen=True, eq=False)
class Library:
    """One module for one target. model: the call table of a whole model, if it holds one.

    lowered: gives the kernels' loops. compiled: the kernels' objects by name, in the same order, if
    they exist already. linked: the user's objects that kernels call. The rest is made on demand.
    Objects are identical bytes for identical kernels, whatever the hash seed.
    """

    name: str
    target: Target
    lowered: Callable[[], Iterable[Kernel]]
    compiled: Mapping[str, KernelObject] | None = None
    model: ModelMap | None = None
    linked: tuple[LinkedObject, ...] = ()

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(self.lowered())

    @cached_property
    def signatures(self) -> dict[str, SignatureMap]:
        """The metadata of each kernel, by name."""
        if self.compiled is not None:
            return {name: o.signature for name, o in self.compiled.items()}
        return {kernel.name: signature(kernel) for kernel in self.kernels}

    @cached_property
    def object_bytes(self) -> bytes:
        _refuse_names(self.signatures)
        compiled = self.compiled
        if compiled is None:
            compiled = {k.name: compile_kernel(k, self.target) for k in self.kernels}
        objects = _objects(compiled)
        described = msgpack.packb(metadata(self))
        return link(merge(objects or [("", empty_object(self.target))], described), self.linked)

    @property
    def weights_bytes(self) -> bytes:
        """A library of kernels has no weights; a compiled model has."""
        return b""

    @cached_property
    def llvm_ir(self) -> str:
        """The module as LLVM IR, before optimisation."""
        _refuse_names(self.signatures)
        return str(llvm_module(self.name, self.target, self.kernels))

    @cached_property
    def optimized_ir(self) -> str:
        with optimized(self.llvm_ir, self.target) as (_, module):
            return str(module)

    @cached_property
    def assembly(self) -> str:
        with optimized(self.llvm_ir, self.target) as (machine, module):
            return str(machine.emit_assembly(module))

    def get_source(self, fmt: str = "") -> str:
        """The module as text: "ll" LLVM IR, "asm" assembly, "c" C; without fmt, C for the target C,
        else LLVM IR. Raises CodegenError."""
        match fmt or ("c" if self.target.kind == "c" else "ll"):
            case "ll":
                return self.optimized_ir
            case "asm" | "s":
                return self.assembly
            case "c":
                return c_source(self)[0]
            case other:
                raise CodegenError(f"get_source: no format '{other}'", mend='"ll", "asm" or "c"')

    def save(self, path: str | Path) -> Path:
        """Writes the module by its suffix: .o object, .s assembly, .ll LLVM IR, .c C source and,
        beside it, its header."""
        to = Path(path)
        match to.suffix:
            case ".o":
                write_whole(to, self.object_bytes)
            case ".s":
                write_whole(to, self.assembly)
            case ".ll":
                write_whole(to, self.optimized_ir)
            case ".c":
                header = to.with_suffix(".h")
                source, declarations = c_source(self, header.name)
                write_whole(to, source)
                write_whole(header, declarations)
            case other:
                raise CodegenError(
                    f"no format is known by the suffix '{other}'",
                    where=str(to),
                    mend="a path that ends in .o, .s, .ll or .c",
                )
        return to


def _objects(compiled: Mapping[str, KernelObject]) -> list[tuple[str | tuple[str, ...], bytes]]:
    """Each object with the name of its kernel, or with the names of the kernels that share it.
    Where several kernels have one number in equal objects, each group of numbers gets an object."""
    found: list[tuple[str | dict[int, str], bytes]] = []
    shared: dict[bytes, list[dict[int, str]]] = {}
    for name, o in compiled.items():
        if o.number is None:
            found.append((name, o.code))
            continue
        groups = shared.setdefault(o.code, [])
        group = next((g for g in groups if o.number not in g), None)
        if group is None:
            groups.append(group := {})
            found.append((group, o.code))
        group[o.number] = name
    return [
        (names if isinstance(names, str) else tuple(names[n] for n in sorted(names)), code)
        for names, code in found
    ]


def metadata(library: Library) -> MetadataMap:
    """The content of the section ".mlc"; device_runtime/include/mlc_abi.h has the format."""
    found: MetadataMap = {
        "abi": PROGRAM_ABI if library.model and "procedures" in library.model else ABI_VERSION,
        "target": str(library.target),
        "machine": library.target.arch,
        "features": sorted(library.target.required_features),
        "kernels": [{"name": name, **s} for name, s in library.signatures.items()],
    }
    if library.model is not None:
        found["model"] = library.model
    return found


def _refuse_names(names: Iterable[str]) -> None:
    taken = sorted(LIBRARY_NAMES.intersection(names))
    if taken:
        raise CodegenError(
            f"kernel '{taken[0]}' has the name of a C function that generated code may call",
            mend=f"another name, such as {taken[0]}_kernel",
        )


def compile_kernels(name: str, kernels: Sequence[Kernel], target: Target) -> Library:
    """A library of kernels, whose names must be unique; CodegenError for what the target lacks."""
    names = [kernel.name for kernel in kernels]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise CodegenError(f"two kernels are called '{min(twice)}'")
    return Library(name, target, lambda: kernels)
