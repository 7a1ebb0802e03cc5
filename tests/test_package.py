"""The wheel: what is in it, for whom it is, and that building it twice gives the same bytes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import runtime_build

ROOT = Path(__file__).parents[1]


def built(target: str, folder: Path) -> Path:
    """The one file that hatchling makes of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def test_wheel_is_for_every_machine(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_has_all_that_a_user_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    for name in runtime_build.BINARIES:
        mode = entries[f"mlc_deploy/_runtime/{name}"].external_attr >> 16
        assert mode & 0o111 == 0o111, f"{name} cannot be started"
    wanted = {
        "mlc_deploy/_runtime/mlc_runtime.c",
        "mlc_deploy/_runtime/mlc_runtime.h",
        "mlc_deploy/models/digits_cnn.onnx",
        "mlc_deploy/models/digits_mlp.onnx",
        "mlc_deploy/models/digits.npz",
        "mlc_deploy/py.typed",
        "mlc_rpc/py.typed",
        "mlc_targets/py.typed",
    }
    assert wanted <= set(entries)
    roots = {name.split("/")[0] for name in entries if ".dist-info/" not in name}
    assert roots == {"mlc_deploy", "mlc_rpc", "mlc_targets"}


FUNCTIONS = """
import sys
import mlc_deploy.driver.compile, mlc_deploy.lower
import mlc_deploy as mlc
from mlc_deploy import *
names = ("build", "compile", "deploy", "lower", "te")
print(*(type(getattr(mlc, name)).__name__ for name in names))
assert all(getattr(mlc, name) is globals()[name] for name in mlc.__all__)
"""


def test_functions_are_not_hidden_by_modules_of_their_names() -> None:
    """Whichever is imported first; the compiler itself is imported late."""
    run = subprocess.run([sys.executable, "-c", FUNCTIONS], capture_output=True, text=True)
    assert run.stdout == "function function function function module\n", run.stderr


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_same_bytes_when_built_again(target: str, tmp_path: Path) -> None:
    one, two = (built(target, tmp_path / name) for name in ("one", "two"))
    assert one.name == two.name and one.read_bytes() == two.read_bytes()
