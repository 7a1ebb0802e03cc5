"""Scripts written for TVM run with `import tvm` as it stands; what is absent says what to write."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy.tvm as tvm
from mlc_deploy import MlcError
from mlc_deploy.tvm import absent, alias
from mlc_deploy.tvm.check import check
from mlc_deploy.tvm.cli import main
from tests import own_tables

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
# Scripts that say why they do not run.
REFUSED = {
    "scan_recurrence": (AttributeError, r"no tvm\.te\.scan here\n  try: a loop of the graph"),
    "tensorize_gemv": (MlcError, "unexpected keyword argument 'offset_factor'"),
}


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """What a script imports and registers is gone after it."""
    before, finders = dict(sys.modules), list(sys.meta_path)
    with own_tables.restored():
        yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - set(before):
        if name == "tvm" or name.startswith("tvm."):
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_run_unchanged(script: Path) -> None:
    """Each script checks its results itself."""
    alias.install()
    if script.stem in REFUSED:
        kind, message = REFUSED[script.stem]
        with pytest.raises(kind, match=message):
            runpy.run_path(str(script), run_name="__main__")
        assert check(script.read_text())
        return
    runpy.run_path(str(script), run_name="__main__")
    assert check(script.read_text()) == []


def test_scripts_are_many() -> None:
    assert len(SCRIPTS) >= 20 and len(SCRIPTS) - len(REFUSED) >= 18


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, tvm\nfrom tvm import te\nprint(te.var('n'), sys.argv[1:])\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mlc_deploy.tvm", "run", str(script), "a"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "n ['a']\n"
    assert main(["check", str(script)]) == 0
    assert capsys.readouterr().out == f"{script}: every name of TVM's that it uses exists\n"
    script.write_text(
        "import tvm\nfrom tvm import relay\nimport mlc_deploy.tvm.auto_scheduler as a\n"
        "from tvm import te as t\nx = t.hybrid.script\ny = tvm.te.compuet\n"
    )
    assert main(["check", str(script)]) == 1
    assert capsys.readouterr().out == (
        f"{script}:2: there is no tvm.relay here\n"
        '  try: mlc_deploy.compile("model.onnx", target), for files of ONNX, TFLite and PyTorch\n'
        f"{script}:3: there is no tvm.auto_scheduler here\n"
        "  try: mlc_deploy.tune.tune_tir, which needs no template\n"
        f"{script}:5: there is no tvm.te.hybrid here\n  try: tvm.script.tir\n"
        f"{script}:6: there is no tvm.te.compuet here\n  try: compute, ComputeOp\n"
    )
    script.write_text("x = (\n")
    assert main(["check", str(script)]) == 2
    assert f"{script}:1: this is not Python: '(' was never closed" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err == f"there is no file {tmp_path / 'none.py'}\n"


def test_absent_names_say_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"no tvm\.vulkan here\n  try: parallel and vectorize"):
        _ = tvm.vulkan
    with pytest.raises(AttributeError, match=r"no tvm\.biuld here\n  try: build"):
        _ = tvm.biuld
    with pytest.raises(AttributeError, match=r"no tvm\.relax\.transform\.Gradient here"):
        _ = tvm.relax.transform.Gradient
    alias.install()
    for name in ("tvm.relay", "tvm.contrib.graph_executor", "tvm.topi.nn2"):
        with pytest.raises(ImportError):
            importlib.import_module(name)
    with pytest.raises(ImportError, match=r"no tvm\.relay here\n  try: mlc_deploy\.compile"):
        importlib.import_module("tvm.relay")


@pytest.mark.parametrize("name", absent.INSTEAD)
def test_the_table_names_what_is_absent(name: str) -> None:
    """An entry for a name that exists would be wrong. tvm.topi is for the names it lacks."""
    if name in ("tvm.topi", "tvm.ir.assert_structural_equal"):
        return
    (found,) = check(f"import tvm\n{name}.x\n")
    assert found.mend == absent.INSTEAD[name]


def test_arrays() -> None:
    a = tvm.nd.array([[1, 2], [3, 4]])
    assert (a.shape, a.dtype, a.ndim, len(a)) == ((2, 2), "int32", 2, 2)
    b = tvm.nd.empty((2, 2), "int32")
    a.copyto(b)
    b[0, 1] = 7
    assert b[0, 1] == 7 and a[0, 1] == 2 and tvm.nd.array(1.5).dtype == "float32"
    assert np.asarray(b).tolist() == [[1, 7], [3, 4]]
    with pytest.raises(MlcError, match=r"no device 'cuda'\n  try: tvm\.cpu\(\)"):
        tvm.device("cuda", 0)


def test_modules() -> None:
    te = tvm.te
    A = te.placeholder((8,), name="A")
    B = te.compute((8,), lambda i: A[i] + 1, name="B")
    func = tvm.build(te.create_schedule(B.op), [A, B], "llvm", name="one")
    assert func.entry_name == "one" and func.type_key == "llvm"
    b = tvm.nd.empty((8,))
    func["main"](tvm.nd.array(np.arange(8, dtype="float32")), b)
    assert b.numpy().tolist() == list(range(1, 9))
    with pytest.raises(MlcError, match="no function 'two'\n  try: one"):
        func["two"]
    with pytest.raises(MlcError, match=r"argument 1 is ndarray.*\n  try: tvm\.nd\.array"):
        func(np.zeros(8, "float32"), b)
    with pytest.raises(MlcError, match=r"no option 'tir\.usmp' here"):
        tvm.transform.PassContext(config={"tir.usmp": True})
