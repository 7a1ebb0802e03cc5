"""Objects of single kernels as one: what they compute, and what others read in them."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlc_deploy.codegen import Library
from mlc_deploy.codegen.elf import read_object, write_object
from mlc_deploy.codegen.merge import KERNEL, merge
from mlc_deploy.errors import CodegenError
from mlc_targets import Target
from tests.runtime.driver import run_driver
from tests.runtime.elf_objects import (
    ABS,
    ALLOC,
    COMMON,
    EXECINSTR,
    LOCAL,
    NOBITS,
    PROGBITS,
    RELA,
    TLS,
    UNDEF,
    WRITE,
    Object,
    Relocation,
    Section,
    Symbol,
)
from tests.runtime.kernels import MACHINES, Kernel, Machine, compile_ir, kernel_ir, runs_on

# The others have writable data, or functions besides the kernel, as no kernel of ours has.
MERGED = {"vector_constants", "tables", "jump_table", "libm", "division", "division_128",
          "conversions", "half", "memory"}  # fmt: skip
METADATA = b"\x81\xa3abi\x01"

needs_binutils = pytest.mark.skipif(
    not all(map(shutil.which, ("ld", "nm"))), reason="no ld or nm here: apt install binutils"
)


def kernels_of(machine: Machine) -> list[Kernel]:
    return [k for k in runs_on(machine) if k.name in MERGED]


def single(machine: Machine, kernel: Kernel) -> bytes:
    """The kernel's object, as the code generator would name the function."""
    return compile_ir(machine, kernel_ir(replace(kernel, name=KERNEL)))


def merged(machine: Machine, kernels: Sequence[Kernel]) -> bytes:
    """Kernels under their names, each with its number among them."""
    return merge([(f"{k.name}_{n}", single(machine, k)) for n, k in enumerate(kernels)], METADATA)


def check(machine: Machine, kernel: Kernel, number: int, path: Path) -> None:
    size = str(kernel.expect.nbytes)
    name = f"{kernel.name}_{number}"
    result = run_driver(machine.board, path, name, size, stdin=kernel.input.tobytes())
    assert (result.returncode, result.stderr) == (0, b"")
    actual = np.frombuffer(result.stdout, kernel.expect.dtype)
    np.testing.assert_allclose(actual, kernel.expect.ravel(), kernel.tolerance, atol=0)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_every_kernel_computes_what_it_did(machine: Machine, tmp_path: Path) -> None:
    """Twice each, so that every one is behind others."""
    kernels = kernels_of(machine) * 2
    path = tmp_path / "merged.o"
    path.write_bytes(merged(machine, kernels))
    for number, kernel in enumerate(kernels):
        check(machine, kernel, number, path)
    found = run_driver("x86_64", path, "--section", ".mlc")
    assert (found.returncode, found.stdout) == (0, METADATA)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_random_sets_of_kernels(tmp_path: Path, data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from(MACHINES))
    kernels = data.draw(st.lists(st.sampled_from(kernels_of(machine)), min_size=1, max_size=12))
    path = tmp_path / "merged.o"
    path.write_bytes(merged(machine, kernels))
    number = data.draw(st.integers(0, len(kernels) - 1))
    check(machine, kernels[number], number, path)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_what_stands_in_it(machine: Machine) -> None:
    """Local symbols first; each kernel's bytes; undefined functions once; nothing to write."""
    kernels = kernels_of(machine)
    elf = ELFFile(io.BytesIO(merged(machine, [*kernels, *kernels])))
    table: Any = elf.get_section_by_name(".symtab")
    symbols = list(table.iter_symbols())
    bindings = [s["st_info"]["bind"] == "STB_LOCAL" for s in symbols]
    assert bindings == sorted(bindings, reverse=True) and sum(bindings) == table["sh_info"]
    names = [s.name for s in symbols if s["st_info"]["bind"] != "STB_LOCAL"]
    assert len(names) == len(set(names))
    assert {f"{k.name}_{n}" for n, k in enumerate([*kernels, *kernels])} <= set(names)
    assert "expf" in names and "<string>" not in {s.name for s in symbols}

    sizes = {s.name: s["st_size"] for s in symbols}
    for number, kernel in enumerate(kernels):
        alone: Any = ELFFile(io.BytesIO(single(machine, kernel))).get_section_by_name(".symtab")
        (function,) = alone.get_symbol_by_name(KERNEL)
        assert sizes[f"{kernel.name}_{number}"] == function["st_size"] > 0

    present = {s.name: s for s in elf.iter_sections()}
    assert (".ARM.attributes" in present) == (machine.board == "arm")
    assert not any(name.startswith((".eh_frame", ".ARM.ex", ".data")) for name in present)
    assert not any(s["sh_flags"] & WRITE for s in present.values())
    assert present[".mlc"].data() == METADATA and present[".mlc"]["sh_flags"] == 0
    pieces = [s for k in kernels for s in read_object(single(machine, k)).sections]
    for name in (".text", ".rodata"):
        wanted = max(s.alignment for s in pieces if s.name.startswith(name))
        assert present[name]["sh_addralign"] == wanted
    marks = {s.name for s in symbols if s.name.startswith("$")}
    assert marks >= {"arm": {"$t"} if "thumb" in machine.name else {"$a", "$d"},
                     "aarch64": {"$x"}, "x86_64": set()}[machine.board]  # fmt: skip


def test_the_same_bytes_each_time() -> None:
    machine = MACHINES[0]
    kernels = kernels_of(machine)
    assert merged(machine, kernels) == merged(machine, kernels)
    assert merged(machine, kernels) != merged(machine, kernels[::-1])


def test_a_merged_object_reads_as_it_was_written() -> None:
    for machine in MACHINES:
        data = merged(machine, kernels_of(machine))
        found = read_object(data)
        tables = len(found.relocations) + 2
        assert write_object(replace(found, sections=found.sections[:-tables])) == data


@needs_binutils
def test_binutils_find_what_ld_makes(tmp_path: Path) -> None:
    """`ld -r` of the same objects, with their kernels renamed, has the same global symbols; and a
    linker takes the merged object."""
    (machine,) = (m for m in MACHINES if m.name == "x86_64-static")
    kernels = kernels_of(machine)
    ours = tmp_path / "ours.o"
    ours.write_bytes(merged(machine, kernels))
    paths = []
    for number, kernel in enumerate(kernels):
        paths.append(tmp_path / f"{number}.o")
        ir = kernel_ir(replace(kernel, name=f"{kernel.name}_{number}"))
        paths[-1].write_bytes(compile_ir(machine, ir))
    theirs = tmp_path / "theirs.o"
    subprocess.run(["ld", "-r", *paths, "-o", theirs], check=True)
    assert globals_of(ours) == globals_of(theirs)
    linked = ["ld", "--unresolved-symbols=ignore-all", "-e", "half_7", str(ours)]
    found = subprocess.run(
        [*linked, "-o", str(tmp_path / "out")], check=True, capture_output=True, text=True
    )
    assert found.stderr == ""


def globals_of(path: Path) -> set[tuple[str, str]]:
    """(kind, name) of what nm lists as defined or wanted."""
    text = subprocess.run(["nm", "-g", path], check=True, capture_output=True, text=True).stdout
    return {(line.split()[-2], line.split()[-1]) for line in text.splitlines()}


@pytest.mark.parametrize("target", ["host", "armv7a", "aarch64"])
def test_a_library_without_kernels_loads(tmp_path: Path, target: str) -> None:
    """As that of a model does which calls nothing but registered functions."""
    library = Library("none", Target(target), lambda: ())
    path = library.save(tmp_path / "none.o")
    result = run_driver(library.target.arch, path)
    assert (result.returncode, result.stderr) == (0, b"")


# ------------------------------------------------------------------------------------- refusals

OURS = Symbol(KERNEL)
CALL = Relocation(4, 1)  # R_X86_64_PLT32 to symbol 1


def refused(*objects: tuple[str, Object | bytes]) -> str:
    built = [(name, o if isinstance(o, bytes) else o.build()) for name, o in objects]
    with pytest.raises(CodegenError) as caught:
        merge(built, METADATA)
    return str(caught.value)


def test_the_smallest_object_is_merged() -> None:
    for name in ("x86_64", "aarch64", "arm"):
        whole = read_object(merge([("f", Object(name, symbols=(OURS,)).build())], METADATA))
        assert [s.name for s in whole.symbols] == ["", "f"]


@pytest.mark.parametrize(
    ("name", "kind", "flags"),
    [
        (".data", PROGBITS, ALLOC | WRITE),
        (".bss", NOBITS, ALLOC | WRITE),
        (".tdata", PROGBITS, ALLOC | TLS),
        (".init_array", 14, ALLOC),
        (".group", 17, 0),
        (".debug_info", PROGBITS, 0),
    ],
)
def test_sections_that_kernels_have_not(name: str, kind: int, flags: int) -> None:
    o = Object(sections=(Section(), Section(name, type=kind, flags=flags)), symbols=(OURS,))
    what = f"section '{name}' of type {kind:#x}, flags {flags:#x}"
    assert refused(("f", o)) == f"the object of kernel 'f' cannot be merged: it has {what}"


@pytest.mark.parametrize(
    ("symbols", "what"),
    [
        ((), "no function 'kernel'"),
        ((Symbol("other"),), "symbol 'other' of binding 1 and type 2"),
        ((replace(OURS, type=1),), "symbol 'kernel' of binding 1 and type 1"),
        ((replace(OURS, section=UNDEF),), "no function 'kernel'"),
        ((replace(OURS, section=ABS),), "no function 'kernel'"),
        ((replace(OURS, section=COMMON),), "no function 'kernel'"),
        ((Symbol("t", binding=LOCAL, type=6), OURS), "symbol 't' of binding 0 and type 6"),
        ((Symbol("a", section=ABS, binding=LOCAL), OURS), "symbol 'a' in section 0xfff1"),
    ],
)
def test_symbols_that_kernels_have_not(symbols: tuple[Symbol, ...], what: str) -> None:
    """The first is what a relocation names."""
    code = Section(relocations=(CALL,) if len(symbols) > 1 else ())
    o = Object(sections=(code,), symbols=symbols)
    assert refused(("f", o)) == f"the object of kernel 'f' cannot be merged: it has {what}"


def test_what_is_no_object_of_the_kind() -> None:
    begin = "the object of kernel 'f' cannot be merged: "
    good = Object(symbols=(OURS,)).build()
    assert refused(("f", b"")).startswith(begin + "not an ELF object")
    assert refused(("f", b"<html>" + bytes(99))) == begin + (
        "not a little-endian relocatable ELF object"
    )
    assert refused(("f", good[:90])).startswith(begin + "not an ELF object")
    assert refused(("f", Object("riscv", symbols=(OURS,)))) == begin + (
        "an ELF object for machine 243"
    )
    arm = Object("arm", (Section(relocations=(CALL,)),), (OURS,), reloc_type=RELA)
    assert refused(("f", arm)) == begin + "relocations of type 4 for machine 40"


@pytest.mark.parametrize(
    "other",
    [Object("x86_64", symbols=(OURS,)), Object("arm", symbols=(OURS,), arm_attributes=b"A")],
)
def test_objects_that_do_not_belong_together(other: Object) -> None:
    assert refused(("f", Object("arm", symbols=(OURS,))), ("g", other)) == (
        "the object of kernel 'g' cannot be merged: it has another machine, or another calling "
        "convention"
    )


def test_a_kernel_named_like_a_function_that_one_calls() -> None:
    calling = Object(
        sections=(Section(flags=ALLOC | EXECINSTR, relocations=(CALL,)),),
        symbols=(Symbol("expf", section=UNDEF, type=0), OURS),
    )
    assert refused(("expf", Object(symbols=(OURS,))), ("f", calling)) == (
        "kernel 'expf' has the name of a function that generated code calls\n"
        "  try: another name, such as expf_kernel"
    )
