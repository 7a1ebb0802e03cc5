"""The loader under sanitizers, on mutated objects."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runtime.driver import RUNTIME
from tests.runtime.elf_objects import Object, Relocation, Section, Symbol
from tests.runtime.kernels import MACHINES, object_of

SOURCES = ("elf_reader", "load", "arm_abi", "reloc_arm", "reloc_aarch64", "reloc_x86_64")
SANITIZERS = "-fsanitize=address,undefined"


def build(folder: Path) -> Path:
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no clang or gcc for the sanitizers; try: apt-get install gcc")
    path = folder / "fuzz_load"
    subprocess.run(
        [compiler, "-std=c11", "-g", "-O1", SANITIZERS, "-fno-sanitize-recover=all",
         "-DMLC_FUZZ_MAIN", f"-I{RUNTIME / 'src'}",
         *(str(RUNTIME / "src" / f"{name}.c") for name in SOURCES),
         *(str(RUNTIME / "fuzz" / f"{name}.c") for name in ("fuzz_load", "mutate")),
         "-o", str(path)],
        check=True,
    )  # fmt: skip
    return path


def seeds(folder: Path) -> list[Path]:
    """LLVM's objects of every machine, and tiny ones, where a change more often hits something."""
    contents = [object_of(machine) for machine in MACHINES]
    for machine, kinds in (
        ("aarch64", (257, 258, 260, 261, 263, 269, 275, 277, 280, 283, 285, 299, 311, 312)),
        ("arm", (2, 3, 10, 28, 29, 30, 40, 42, 43, 44, 45, 46, 47, 48, 49, 50, 96)),
        ("x86_64", (1, 2, 4, 9, 10, 11, 24, 41, 42)),
    ):
        section = Section(
            content=bytes(64), relocations=tuple(Relocation(kind, 2) for kind in kinds)
        )
        for symbol in (Symbol("f"), Symbol("expf", 0)):
            sections = (section, Section(".mlc", b"\x80", flags=0))
            contents.append(Object(machine, sections, (Symbol("g"), symbol)).build())
    paths = [folder / f"seed{i}.o" for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def run(folder: Path, count: int) -> None:
    result = subprocess.run(
        [build(folder), str(count), *seeds(folder)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    match = re.search(r"(\d+) of them accepted: no finding", result.stdout)
    # Mutants that all fail early would prove little.
    assert match and int(match[1]) > count / 20


def test_mutated_objects_are_no_danger(tmp_path: Path) -> None:
    run(tmp_path, 4000)


@pytest.mark.fuzz
def test_many_mutated_objects_are_no_danger(tmp_path: Path) -> None:
    run(tmp_path, 200_000)
