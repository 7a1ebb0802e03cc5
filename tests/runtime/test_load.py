"""Objects as LLVM makes them, loaded and called on every machine, compared with known values."""

from __future__ import annotations

import io
import signal
import struct
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from tests.runtime.driver import run_driver
from tests.runtime.elf_objects import ABS, NOBITS, NULL, Object, Relocation, Section, Symbol
from tests.runtime.kernels import MACHINES, Kernel, Machine, compile_ir, object_of, runs_on

CASES = [pytest.param(m, k, id=f"{m.name}-{k.name}") for m in MACHINES for k in runs_on(m)]


@pytest.mark.parametrize(("machine", "kernel"), CASES)
def test_kernel_computes_what_it_must(machine: Machine, kernel: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "kernels.o"
    path.write_bytes(object_of(machine))
    result = run_driver(
        machine.board, path, kernel.name, str(kernel.expect.nbytes), stdin=kernel.input.tobytes()
    )
    assert (result.returncode, result.stderr) == (0, b"")
    actual = np.frombuffer(result.stdout, kernel.expect.dtype)
    if kernel.tolerance:
        np.testing.assert_allclose(actual, kernel.expect.ravel(), kernel.tolerance)
    else:
        np.testing.assert_array_equal(actual, kernel.expect.ravel())


def relocation_types(machines: tuple[Machine, ...]) -> set[int]:
    """Types of the relocations that the loader applies when it loads these machines' kernels."""
    found = set()
    for machine in machines:
        elf = ELFFile(io.BytesIO(object_of(machine)))
        for section in elf.iter_sections():
            if not isinstance(section, RelocationSection):
                continue
            target = elf.get_section(section["sh_info"])
            if target["sh_flags"] & 2 and not target.name.startswith((".eh_frame", ".ARM.ex")):
                found |= {r["r_info_type"] for r in section.iter_relocations()}
    return found


# Those that LLVM was seen to emit, by their numbers in the supplements of the ELF specification.
SEEN = {
    "aarch64": {257, 264, 266, 268, 269, 275, 277, 278, 282, 283, 284, 285, 286, 299, 311, 312},
    "arm": {2, 3, 10, 28, 29, 30, 43, 44, 47, 48, 96},
    "x86_64": {1, 2, 4, 9, 10, 11, 41, 42},
}


@pytest.mark.parametrize("board", SEEN)
def test_kernels_use_every_relocation_seen(board: str) -> None:
    assert SEEN[board] <= relocation_types(tuple(m for m in MACHINES if m.board == board))


def test_section_of_an_object_for_another_machine(tmp_path: Path) -> None:
    sections = (Section(), Section(".mlc", b"\x81\xa3abi\x01", flags=0))
    path = tmp_path / "module.o"
    for machine in ("aarch64", "arm", "x86_64"):
        path.write_bytes(Object(machine, sections).build())
        result = run_driver("x86_64", path, "--section", ".mlc")
        assert (result.returncode, result.stdout) == (0, b"\x81\xa3abi\x01")
    path.write_bytes(Object("arm").build())
    result = run_driver("x86_64", path, "--section", ".mlc")
    assert (result.returncode, result.stderr) == (1, b"object has no section '.mlc'\n")


@pytest.mark.parametrize("kind", [NULL, NOBITS])
def test_section_without_bytes_is_not_found(kind: int, tmp_path: Path) -> None:
    """Its offset and size may say anything."""
    path = tmp_path / "module.o"
    path.write_bytes(Object(sections=(Section(".mlc", type=kind, size=1 << 32),)).build())
    result = run_driver("x86_64", path, "--section", ".mlc")
    assert (result.returncode, result.stderr) == (1, b"object has no section '.mlc'\n")


def test_symbol_in_an_unloaded_section_is_no_obstacle(tmp_path: Path) -> None:
    sections = (Section(), Section(".mlc", b"data", flags=0))
    path = tmp_path / "module.o"
    path.write_bytes(Object("x86_64", sections, (Symbol("info", 2), Symbol("k"))).build())
    assert run_driver("x86_64", path).returncode == 0


def thumb(first: int, second: int) -> int:
    return second << 16 | first


# What LLVM was not seen to emit: the word before, and after, when the symbol is 0x12344 bytes on.
FURTHER = {
    ("arm", 42): (0x80000000, 0x80012344),  # PREL31 keeps the uppermost bit
    ("arm", 45): (0xE3000000, 0xE3020344),  # movw r0, #:lower16:
    ("arm", 46): (0xE3400000, 0xE3400001),  # movt r0, #:upper16:
    ("arm", 49): (thumb(0xF240, 0x0000), thumb(0xF242, 0x3044)),
    ("arm", 50): (thumb(0xF2C0, 0x0000), thumb(0xF2C0, 0x0001)),
    ("arm", 40): (0xE12FFF1E, 0xE12FFF1E),  # V4BX leaves bx lr alone
    ("aarch64", 260): (0, 0x12344),
    ("aarch64", 261): (0, 0x12344),
    ("aarch64", 314): (0, 0x12344),
    ("aarch64", 274): (0x10000000, 0x10091A20),  # adr x0
    ("aarch64", 280): (0x54000000, 0x54091A20),  # b.eq
    ("x86_64", 24): (0, 0x12344),
}


@pytest.mark.parametrize(("machine", "kind"), FURTHER)
def test_further_relative_relocation(machine: str, kind: int, tmp_path: Path) -> None:
    before, after = FURTHER[machine, kind]
    content = before.to_bytes(4, "little").ljust(0x12348, b"\0")
    section = Section(content=content, relocations=(Relocation(kind, 2),))
    symbols = (Symbol("word", type=0), Symbol("f", value=0x12344, type=0))
    path = tmp_path / "object.o"
    path.write_bytes(Object(machine, (section,), symbols).build())
    word, _ = run_driver(machine, path, "--word", "word").stdout.split()
    assert f"{int(word):#x}" == f"{after:#x}"


# Absolute ones: the fields of the symbol's own address, and its range where it is checked.
ABSOLUTE = {
    ("aarch64", 263): (0xD2800000, 0),  # movz x0, #:abs_g0:
    ("aarch64", 265): (0xD2A00000, 16),
    ("aarch64", 267): (0xD2C00000, 32),
}


@pytest.mark.parametrize(("machine", "kind"), ABSOLUTE)
def test_absolute_relocation(machine: str, kind: int, tmp_path: Path) -> None:
    before, shift = ABSOLUTE[machine, kind]
    content = before.to_bytes(4, "little").ljust(16, b"\0")
    section = Section(content=content, relocations=(Relocation(kind, 2),))
    value = 0x9ABC << shift
    symbols = (Symbol("word", type=0), Symbol("f", ABS, value, type=0))
    path = tmp_path / "object.o"
    path.write_bytes(Object(machine, (section,), symbols).build())
    word, _ = run_driver(machine, path, "--word", "word").stdout.split()
    assert int(word) == before | 0x9ABC << 5


def test_arm_and_thumb_code_call_each_other(tmp_path: Path) -> None:
    """BL becomes BLX where the callee is in the other state."""
    call_arm = bytes.fromhex("00b5 fff7feff 00bd 00bf".replace(" ", ""))  # push {lr}; bl; pop {pc}
    store_and_return = struct.pack("<4I", 0xE3A0302A, 0xE5823000, 0xE12FFF1E, 0)  # [r2] = 42
    load_output = struct.pack("<3I", 0xE5902000, 0xE5922004, 0xE3A00000)  # r2 = data[1]; r0 = 0
    enter, leave = struct.pack("<I", 0xE92D4010), struct.pack("<2I", 0xEBFFFFFE, 0xE8BD8010)
    kernel = enter + load_output + leave  # push {r4, lr} ... bl middle; pop {r4, pc}
    sections = (
        Section(".text.arm", kernel, relocations=(Relocation(28, 2, 16),)),
        Section(".text.thumb", call_arm, relocations=(Relocation(10, 3, 2),)),
        Section(".text.last", store_and_return),
    )
    symbols = (Symbol("kernel", 1), Symbol("middle", 2, 1), Symbol("last", 3))
    path = tmp_path / "object.o"
    path.write_bytes(Object("arm", sections, symbols).build())
    result = run_driver("arm", path, "kernel", "4")
    assert (result.returncode, result.stdout) == (0, b"\x2a\0\0\0")


TRESPASSES = {
    "write_code": "store volatile i32 0, ptr @k",
    "write_constants": "store volatile i32 0, ptr @constant",
    "run_data": "call void @data()",
    "run_constants": "call void @constant()",
}


@pytest.mark.parametrize("machine", [m for m in MACHINES if m.reloc == "static"])
@pytest.mark.parametrize("trespass", TRESPASSES)
def test_image_is_sealed(machine: Machine, trespass: str, tmp_path: Path) -> None:
    """Code and constants are not writable, data and constants not executable."""
    path = tmp_path / "kernel.o"
    ir = f"""
        @data = global [2 x i32] zeroinitializer
        @constant = constant [2 x i32] zeroinitializer
        define i32 @k(ptr %args, i32 %begin, i32 %end) nounwind {{
          {TRESPASSES[trespass]}
          ret i32 0
        }}
    """
    path.write_bytes(compile_ir(machine, ir))
    assert run_driver(machine.board, path, "k", "4").returncode == -signal.SIGSEGV
