"""What reads bytes that others made, under sanitizers and mutated input: some each time, and a
minute of libFuzzer (scripts/fuzz) in a group of its own."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import TARGETS, write_seeds
from tests.runtime.driver import ROOT, RUNTIME

CORPUS = Path(__file__).parent / "corpus"
# Mutants for a second or two. Those of wire and record mutate valid input that they make.
MUTANTS = {"wire": 3000, "record": 3000, "loader": 4000, "table": 20_000, "artifact": 20_000}


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_input_is_no_danger(target: str, tmp_path: Path) -> None:
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no clang or gcc for the sanitizers; try: apt-get install gcc")
    if shutil.which("make") is None:
        pytest.skip("no make, whose file says how harnesses are built; try: apt-get install make")
    program, count = tmp_path / f"fuzz_{target}", MUTANTS[target]
    making = f"make -s -C {RUNTIME} {program} BUILD={tmp_path} FUZZ_CC={compiler}"
    subprocess.run(making.split(), check=True)
    files: list[Path] = []
    if target not in ("wire", "record"):
        files = write_seeds(target, tmp_path / "seeds")
    done = subprocess.run([program, str(count), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    match = re.search(r"(\d+) of them accepted: no finding", done.stdout)
    # Mutants that all fail early would prove little.
    assert match and int(match[1]) > count / 20


def lying(sessions: int) -> None:
    """Many sessions of the client with lying boards, by another seed each time; it is printed."""
    command = [sys.executable, "-m", "tests.fuzz.client", "--sessions", str(sessions)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = dict(re.findall(r"(Lost|ProtocolError|the truth) (\d+)", done.stdout))
    # Lies that all end a session at once would prove little.
    assert min(int(count) for count in ended.values()) > sessions / 100 and len(ended) == 3


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded kernels are for x86_64")
def test_lying_boards_are_not_believed() -> None:
    lying(600)


@pytest.mark.fuzz
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded kernels are for x86_64")
def test_many_lying_boards_are_not_believed() -> None:
    lying(20_000)


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(TARGETS)
    assert sum(path.stat().st_size for path in files) < 200_000


@pytest.mark.fuzz
def test_a_minute_of_fuzzing_finds_nothing() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "fuzz", "--minutes", "0.2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for target in TARGETS:
        assert f"fuzz: {target} for 12 s" in done.stderr
    # Coverage is that of the code that matters, corpus and seeds included, by the target whose
    # subject it is.
    for file, least in (("session.c", 150), ("record.c", 40), ("load.c", 200), ("artifact.c", 100)):
        reached = re.findall(rf"^  {file} +(\d+) of", done.stdout, re.MULTILINE)
        assert max(map(int, reached), default=0) > least, done.stdout
