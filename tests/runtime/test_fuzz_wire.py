"""The supervisor's side of the wire, and the parser of metadata, under sanitizers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runtime.driver import RUNTIME


def run(folder: Path, count: int) -> None:
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no clang or gcc for the sanitizers; try: apt-get install gcc")
    if shutil.which("make") is None:
        pytest.skip("no make, whose file says how the harness is built; try: apt-get install make")
    command = ["make", "-C", str(RUNTIME), "fuzz_wire", f"BUILD={folder}", f"FUZZ_CC={compiler}"]
    result = subprocess.run([*command, f"FUZZ_RUNS={count}"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    match = re.search(r"(\d+) of them accepted: no finding", result.stdout)
    # Mutants that all fail early would prove little.
    assert match and int(match[1]) > count / 20


def test_mutated_frames_are_no_danger(tmp_path: Path) -> None:
    run(tmp_path, 3000)


@pytest.mark.fuzz
def test_many_mutated_frames_are_no_danger(tmp_path: Path) -> None:
    run(tmp_path, 200_000)
