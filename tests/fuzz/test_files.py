"""Mutants of every kind of file from outside: some each time, 20,000 of each in a group."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.files import Finding, Format, fuzz, held, mutant
from tests.fuzz.formats import FORMATS
from tests.runtime.driver import ROOT

NAMES = [format.name for format in FORMATS]
NEEDS = {"template": "jinja2", "tokenizer": "tokenizers", "image": "PIL", "tflite": "tflite"}


def hold(name: str, mutants: int) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"there is no {NEEDS[name]}")
    seed = random.randrange(1 << 30)
    print(f"files: seed {seed}")
    format = FORMATS[NAMES.index(name)]
    ended, findings = fuzz(format, mutants, seed)
    assert not findings, "\n".join(findings)
    assert ended.total() == mutants
    # Mutants that all fail early, or that change nothing, would prove little.
    assert 0 < ended["read"] < mutants


@pytest.mark.parametrize("name", NAMES)
def test_mutants_are_read_or_refused(name: str) -> None:
    hold(name, 150)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", NAMES)
def test_many_mutants_are_read_or_refused(name: str) -> None:
    hold(name, 20_000)


def made_of(data: bytes, rng: random.Random) -> bytes:
    return data + bytes([rng.randrange(256)])


def test_what_is_a_finding(tmp_path: Path) -> None:
    """A foreign exception, too much memory, an endless loop, and the end of the process."""

    def foreign(path: Path) -> None:
        if path.read_bytes() != b"x":
            raise KeyError("x")

    def large(path: Path) -> None:
        if path.read_bytes() != b"x":
            bytearray(2 << 30)

    def endless(path: Path) -> None:
        while path.read_bytes() != b"x":
            time.sleep(0.01)

    def ending(path: Path) -> None:
        if path.read_bytes() != b"x":
            sys.exit(3)

    for read, why in (
        (foreign, "KeyError"), (large, "MemoryError"), (endless, "more than 1 s"),
        (ending, "SystemExit"),
    ):  # fmt: skip
        format = Format("x", lambda: [b"x"], made_of, read, seconds=1)
        ended, findings = fuzz(format, 2, seed=1)
        assert len(findings) == 2 and all(why in text for text in findings), findings
        assert ended == {"FINDING": 2}
    (tmp_path / "file").write_bytes(b"y")
    with pytest.raises(Finding, match="KeyError"):
        held(Format("x", lambda: [b"x"], made_of, foreign), tmp_path / "file")


def test_a_seed_gives_the_same_mutants() -> None:
    format = FORMATS[NAMES.index("wav")]
    seeds = format.seeds()
    once, twice = ([mutant(format, seeds, n, 5) for n in range(20)] for _ in range(2))
    assert once == twice and len(set(once)) > 10


def test_parts_of_an_audit() -> None:
    """Its parts name what there is; a finding is one; a part without its tests says so."""
    from tests.fuzz import audit

    for part in audit.PARTS:
        script = part.command[0] if part.command[0] != sys.executable else part.command[1]
        assert script == "-m" or (ROOT / script).exists(), part.name
    audit.LOGS.mkdir(parents=True, exist_ok=True)
    parts = (
        audit.Part("true", "", ("true",)),
        audit.Part("false", "", ("false",)),
        audit.Part("none", "", audit.tests("tests/nowhere.py")),
        audit.Part("tool", "", ("true",), ("no-such-tool",)),
    )
    ended = [audit.run(part, 0.1)[0] for part in parts]
    assert ended == ["clean", "FINDING", "skipped", "skipped"]


def test_an_audit_of_files() -> None:
    command = [sys.executable, "-m", "tests.fuzz.audit", "--minutes", "0.05", "--only", "files"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        done.stdout.startswith("files     mutants of every kind of file") and "clean" in done.stdout
    )
