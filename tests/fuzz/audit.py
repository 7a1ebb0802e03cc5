"""What a security review of this project runs, part by part.

    scripts/audit [--minutes 1] [--only PART] [--searches] [--list]

Random parts search for so many minutes; the others are tests that run once, and --searches leaves
them out. A part that lacks a
tool is skipped, and says so. Prints a table. What parts print is in build/audit. Exit status 1: a
part has a finding. A part is a row of PARTS.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "audit"
PYTHON = sys.executable
SHOWN = 15  # lines of a finding; its log has all
NO_TESTS = 5  # pytest's status where none was chosen


@dataclass(frozen=True)
class Part:
    """name, and what it attacks. command: what runs, with {minutes}. needs: programs that it cannot
    do without."""

    name: str
    what: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def searches(self) -> bool:
        return any("{minutes}" in word for word in self.command)


def tests(*places: str, only: str = "default") -> tuple[str, ...]:
    """Tests of a group, which run once. Places that this checkout lacks are left out."""
    return (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--only={only}", *places)


LIBFUZZER = ("clang", "llvm-cov", "make")

PARTS = (
    Part("files", "mutants of every kind of file that the laptop reads",
         (PYTHON, "-m", "tests.fuzz.files", "--minutes", "{minutes}")),
    Part("limits", "templates, tokenizers, images, archives and models that cost much",
         tests("tests/files")),
    *(
        Part(name, what, ("scripts/fuzz", "--minutes", "{minutes}", "--only", name), LIBFUZZER)
        for name, what in (
            ("wire", "requests on a board's stream"),
            ("record", "what a stranger on TCP reaches"),
            ("loader", "object files, as a board reads them"),
            ("table", "what objects say of themselves"),
            ("artifact", "saved models and arrays on a board"),
        )
    ),
    Part("client", "boards that lie",
         (PYTHON, "-m", "tests.fuzz.client", "--minutes", "{minutes}")),
    Part("kernels", "hostile kernels in the box of a board",
         tests("tests/runtime/test_box.py", "tests/runtime/test_memory_probes.py"), ("gcc",)),
    Part("indices", "hostile indices, between guard bytes", tests("tests/ops/test_hostile.py")),
    Part("pt2", ".pt2 files that would run code", tests("tests/frontend/test_pt2.py")),
    Part("sockets", "what listens, and what strangers reach of a farm",
         tests("tests/farm/test_closed.py", "tests/farm/test_tls.py", only="farm")),
    Part("commands", "where each command listens",
         tests("tests/cli/test_listening.py", only="sockets")),
    Part("members", "members of a farm that lie", tests("tests/farm/test_witness.py", only="farm")),
    Part("kills", "kills and cut links, under load",
         (PYTHON, "scripts/soak.py", "--minutes", "{minutes}")),
)  # fmt: skip


def run(part: Part, minutes: float) -> tuple[str, str]:
    """How a part ended, and its last words. Its output goes to a log."""
    lacking = [tool for tool in part.needs if shutil.which(tool) is None]
    if lacking:
        return "skipped", f"there is no {', '.join(lacking)}"
    command = _there([word.format(minutes=f"{minutes:g}") for word in part.command])
    if command is None:
        return "skipped", "this checkout lacks its tests"
    log = LOGS / f"{part.name}.txt"
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
    words = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if done.returncode == NO_TESTS and "pytest" in command:
        return "skipped", "none of its tests is for this machine"
    return "clean" if done.returncode == 0 else "FINDING", words[-1] if words else ""


def _there(command: Sequence[str]) -> list[str] | None:
    """A command without the tests that there are not; None if none is left."""
    places = [word for word in command if word.startswith("tests/")]
    there = [word for word in places if (ROOT / word).exists()]
    if places and not there:
        return None
    return [word for word in command if word not in places or word in there]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/audit", description="A review, part by part.")
    parser.add_argument("--minutes", type=float, default=1, help="for each part that searches")
    parser.add_argument("--only", action="append", choices=[p.name for p in PARTS], metavar="PART")
    parser.add_argument("--searches", action="store_true", help="leave out what the tests run")
    parser.add_argument("--list", action="store_true", help="list the parts")
    options = parser.parse_args()
    if options.list:
        for part in PARTS:
            print(f"{part.name:<10}{part.what}")
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    findings = []
    for part in PARTS:
        if options.only and part.name not in options.only:
            continue
        if options.searches and not part.searches:
            continue
        since = time.monotonic()
        how, words = run(part, options.minutes)
        took = time.monotonic() - since
        print(f"{part.name:<10}{part.what:<66}{how:<9}{took:6.0f} s", flush=True)
        if how == "skipped":
            print(f"{'':<10}{words}", flush=True)
        if how == "FINDING":
            findings.append(part.name)
            text = (LOGS / f"{part.name}.txt").read_text(errors="replace").splitlines()
            print("\n".join(f"    {line}" for line in text[-SHOWN:]), flush=True)
    if findings:
        print(f"audit: findings in {', '.join(findings)}: build/audit has what they print")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
