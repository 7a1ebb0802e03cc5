"""What pyproject.toml allows: the oldest version of every dependency, and every Python.

Each environment is made by pip from pyproject.toml's own lower bounds, holds the wheel, and runs
the core of the default tests in this checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_package import ROOT, built

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Extras that add to what a user's command can do, and install in a minute. Those of PyTorch take a
# gigabyte; `farm` and `labgrid` have groups of their own.
EXTRAS = ("images", "text", "tflite", "tune")
# Of the extra `dev`, what the tests below import. Others are tools, whose own needs may exclude
# the oldest versions of ours. JUDGE computes what the tests compare with: an old one has faults of
# its own.
TESTING = ("hatchling", "hypothesis", "pyelftools", "pytest", "pytest-xdist")
JUDGE = ("ai-edge-litert", "onnxruntime")
# The command line, reading models, the reference, the compiler, files and the runtime here. What
# asks an emulator takes most of the default tests' time, and hardly depends on packages.
CORE = (
    "tests/test_tiny.py",
    "tests/artifact/test_saved.py",
    "tests/cli/test_board.py",
    "tests/cli/test_compare.py",
    "tests/cli/test_converters.py",
    "tests/cli/test_encodings.py",
    "tests/cli/test_help.py",
    "tests/cli/test_inspect.py",
    "tests/cli/test_refusals.py",
    "tests/cli/test_report.py",
    "tests/driver",
    "tests/frontend/test_onnx_external.py",
    "tests/frontend/test_onnx_layers.py",
    "tests/frontend/test_onnx_models.py",
    "tests/frontend/test_tflite.py",
    "tests/graph",
)
NEWEST = 14  # the minor version of the newest Python that has been released


def requirements(names: tuple[str, ...] = TESTING) -> list[str]:
    """The lower bounds: of the project, of EXTRAS, and of the named packages of `dev`."""
    extras = PROJECT["optional-dependencies"]
    dev = [r for r in extras["dev"] if re.split(r"[=<>~!]", r)[0] in names]
    return [*PROJECT["dependencies"], *(r for e in EXTRAS for r in extras[e]), *dev]


def oldest(requirement: str) -> str:
    """name>=version   =>   name==version"""
    name, version = re.fullmatch(r"([\w.-]+)[>=]=([\w.]+)", requirement).groups()  # type: ignore[union-attr]
    return f"{name}=={version}"


def pythons() -> Iterator[tuple[str, str | None]]:
    """Each Python that the project takes, and its program here."""
    least = int(PROJECT["requires-python"].removeprefix(">=3."))
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(least, NEWEST + 1):
        name = f"python3.{minor}"
        places = [*versions.glob(f"3.{minor}*/bin"), *os.environ["PATH"].split(os.pathsep)]
        found = (shutil.which(name, path=str(place)) for place in places)
        yield name, next((p for p in found if p and _starts(p)), None)


def _starts(program: str) -> bool:
    """pyenv has programs for versions that are not chosen: these only complain."""
    return subprocess.run([program, "-c", "import venv"], capture_output=True).returncode == 0


def test_every_lower_bound_names_one_version() -> None:
    """Else nobody could tell which is the oldest."""
    for requirement in requirements():
        assert re.fullmatch(r"[\w.-]+==\d[\w.]*", oldest(requirement)), requirement
    assert {"click", "numpy", "onnx"} <= {r.split("==")[0] for r in map(oldest, requirements())}


def test_the_core_is_there() -> None:
    assert [path for path in CORE if not (ROOT / path).exists()] == []


@pytest.mark.oldest
@pytest.mark.parametrize(("name", "program"), list(pythons()))
def test_core_passes(name: str, program: str | None, tmp_path: Path) -> None:
    """With the least Python the oldest versions of all, with each other one the newest."""
    if program is None:
        pytest.skip(f"no {name} here")
    first = name == next(pythons())[0]
    wanted = [oldest(r) for r in requirements()] if first else requirements()
    wanted += JUDGE
    python = str(tmp_path / "venv" / "bin" / "python")
    wheel = built("wheel", tmp_path / "wheel")
    for command in (
        [program, "-m", "venv", str(tmp_path / "venv")],
        [python, "-m", "pip", "install", "--quiet", *wanted],
        [python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)],
        [python, "-m", "pip", "check"],
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CORE],
    ):
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
        assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout[-6000:]}{run.stderr[-2000:]}"
