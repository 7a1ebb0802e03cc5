"""What comes over a stream, and the parser of metadata, under sanitizers and mutated input."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runtime.driver import RUNTIME


def run(harness: str, folder: Path, count: int) -> None:
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no clang or gcc for the sanitizers; try: apt-get install gcc")
    if shutil.which("make") is None:
        pytest.skip("no make, whose file says how the harness is built; try: apt-get install make")
    command = ["make", "-C", str(RUNTIME), harness, f"BUILD={folder}", f"FUZZ_CC={compiler}"]
    result = subprocess.run([*command, f"FUZZ_RUNS={count}"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    match = re.search(r"(\d+) of them accepted: no finding", result.stdout)
    # Mutants that all fail early would prove little.
    assert match and int(match[1]) > count / 20


HARNESSES = ("fuzz_wire", "fuzz_record")


@pytest.mark.parametrize("harness", HARNESSES)
def test_mutated_input_is_no_danger(harness: str, tmp_path: Path) -> None:
    run(harness, tmp_path, 3000)


@pytest.mark.fuzz
@pytest.mark.parametrize("harness", HARNESSES)
def test_much_mutated_input_is_no_danger(harness: str, tmp_path: Path) -> None:
    run(harness, tmp_path, 200_000)
