"""Objects as LLVM makes them, loaded and called on every machine, compared with known values."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.driver import run_driver
from tests.runtime.elf_objects import Object, Section, Symbol
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from tests.runtime.kernels import MACHINES, Kernel, Machine, object_of, runs_on

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
    "x86_64": {1, 2, 4, 9, 11, 42},
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


def test_symbol_in_an_unloaded_section_is_no_obstacle(tmp_path: Path) -> None:
    sections = (Section(), Section(".mlc", b"data", flags=0))
    path = tmp_path / "module.o"
    path.write_bytes(Object("x86_64", sections, (Symbol("info", 2), Symbol("k"))).build())
    assert run_driver("x86_64", path).returncode == 0
