"""The diffs of docs/architecture.md: each applied to a copy of the sources, and put to use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
MOST = {"an ONNX operator": 2, "an instruction": 1, "a CPU": 1, "a graph pass": 2,
        "an RPC method": 3}  # fmt: skip
SECTION = re.compile(r"^## Add (?P<what>[^\n(]*) \((?P<count>\d) files?\)$(?P<text>.*?)(?=^## |\Z)",
                     re.MULTILINE | re.DOTALL)  # fmt: skip
DIFFS = {m["what"]: m for m in SECTION.finditer(PAGE.read_text())}

# A program for each diff, which fails without it.
USES = {
    "an ONNX operator": """
import numpy as np, onnx
from onnx import TensorProto, helper
import mlc_deploy as mlc

value = helper.make_tensor_value_info
node = helper.make_node("ScaledTanh", ["x"], ["y"], alpha=2.0, beta=0.5)
graph = helper.make_graph([node], "g", [value("x", TensorProto.FLOAT, [3, 5])],
                          [value("y", TensorProto.FLOAT, [3, 5])])
opsets = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "model.onnx")
x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
model = mlc.compile("model.onnx", "host")
with mlc.connect("local://") as board:
    done = mlc.deploy(model, board, {"x": x})
assert done.ok and done.outputs["y"].dtype == np.float32
assert abs(done.outputs["y"] - 2 * np.tanh(x / 2)).max() < 1e-6
""",
    "an instruction": """
import re
import numpy as np
import mlc_deploy as mlc
import mlc_deploy.ops
from mlc_deploy.schedule import registered_intrins
from tests.ops.intrinsic_programs import program_of, target_of
from mlc_deploy.ir.interp import run
from mlc_deploy import te

(intrin,) = (i for i in registered_intrins() if i.name == "aarch64.mla.int16")
a, b, c = (te.placeholder((4, 8), "int16", name) for name in "abc")
d = te.compute((4, 8), lambda i, j: c[i, j] + a[i, j] * b[i, j], "d")
lib = mlc.build(te.create_prim_func([a, b, c, d]), target="aarch64", name="f")
assert re.search(intrin.instruction, lib.assembly)
draw = np.random.default_rng(0).integers
x, y, out = (draw(-90, 90, (8,)).astype(np.int16) for _ in range(3))
wanted = out + x * y
run(intrin.description, x, y, out)
assert (out == wanted).all()
""",
    "a CPU": """
from mlc_targets import Target
from mlc_targets.features import VOCABULARY
from tests.targets import llvm_says
import mlc_deploy as mlc
from mlc_deploy import te

target = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-r82 -device=arm_cpu")
names = sorted(VOCABULARY["aarch64"])
(told,) = llvm_says.features([(target.mtriple, "cortex-r82", "", names)])
assert told == target.features
x = te.placeholder((8,), name="x")
assert mlc.build([x, te.compute((8,), lambda i: x[i] * 2, "y")], target=target, name="f").assembly
""",
    "a graph pass": """
import numpy as np
import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.graph import evaluate, op, optimize

bb = graph.BlockBuilder()
x = graph.Var("x", graph.tensor_type((2, 3)))
with bb.function("main", [x]):
    bb.emit_func_output([bb.emit(op.floor(bb.emit(op.round(x))))])
function = bb.get()["main"]
after = optimize(function)
assert [b.call.op for b in after.bindings] == ["round"], after
given = {"x": np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)}
for name, wanted in evaluate(function, given).items():
    assert (evaluate(after, given)[name] == wanted).all()
with mlc.PassContext(disabled_pass=["drop_repeated_rounding"]):
    assert len(optimize(function).bindings) == 2
""",
    "an RPC method": """
import time
import mlc_deploy as mlc

with mlc.connect("local://") as board:
    assert 0 < board.uptime() <= time.clock_gettime(time.CLOCK_BOOTTIME) + 1
""",
}


def test_the_page_shows_every_kind_of_change() -> None:
    assert DIFFS.keys() == MOST.keys() == USES.keys()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that is needed to run."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("host", "rpc", "targets", "device_runtime"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "ops", copy / "tests" / "ops")
    shutil.copytree(ROOT / "tests" / "targets", copy / "tests" / "targets")
    return copy


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(folder / name) for name in ("", "host", "rpc", "targets"))
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("what", MOST)
def test_a_diff_does_what_it_says(what: str, sources: Path) -> None:
    section = DIFFS[what]
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", section["text"], re.MULTILINE | re.DOTALL)
    files = re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)
    assert len(files) == len(set(files)) == int(section["count"]) <= MOST[what]

    def apply(*options: str) -> None:  # one line of context will do: the sources move on
        command = ["git", "apply", "-C1", *options, "-"]
        done = subprocess.run(command, cwd=sources, input=diff, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr

    program = (sys.executable, "-c", USES[what])
    assert run_in(sources, *program).returncode == 1  # the program needs the diff
    apply()
    try:
        if any(name.startswith("device_runtime/") for name in files):
            _build_runtime(sources)
        done = run_in(sources, *program)
        assert done.returncode == 0, done.stderr[-3000:]
        changed = [name for name in files if name.endswith(".py")]
        lint = run_in(ROOT, sys.executable, "-m", "ruff", "check", "--config", "pyproject.toml",
                      *(str(sources / name) for name in changed))  # fmt: skip
        assert lint.returncode == 0, lint.stdout
    finally:
        apply("--reverse")


def _build_runtime(folder: Path) -> None:
    """Builds the program for this machine by its own compiler, in place of the one that ships."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        pytest.skip("no C compiler here: apt install gcc libc6-dev")
    machine = {"aarch64": "aarch64", "arm64": "aarch64"}.get(os.uname().machine, "x86_64")
    out = folder / "host" / "mlc_deploy" / "_runtime" / f"mlc-runtime-{machine}"
    out.unlink()
    make = ("make", "-s", "-C", str(folder / "device_runtime"), f"CC={cc}", f"OUT={out}")
    done = run_in(folder, *make)
    assert done.returncode == 0, done.stderr
