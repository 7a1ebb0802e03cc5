"""Models of open dimensions away from their compiler: as C, as an object, run on the board."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_rpc.extents import stored, true_shape
from tests.artifact.test_export import classified, compiled, gcc
from tests.artifact.test_programs import DRIVER
from tests.graph.test_control import backwards
from tests.graph.test_extents import decided, texts
from tests.runtime.test_run_command import run

Array = NDArray[Any]
rng = np.random.default_rng(3)
ROWS = rng.standard_normal((7, 16)).astype(np.float32)
TALL = rng.standard_normal((5, 20)).astype(np.float32)
SPARSE = np.where(rng.random((4, 9)) < 0.4, rng.standard_normal((4, 9)), 0).astype(np.float32)
MODELS: dict[str, tuple[Any, dict[str, str], dict[str, Array], dict[str, int]]] = {
    # function, its bounds, what it is given, the extents that this decides
    "texts": (texts, {"n": "<=40"}, {"x": ROWS}, {"n": 7}),
    "backwards": (
        backwards,
        {"n": "<=9"},
        {"x": TALL, "h": rng.random(20, np.float32)},
        {"n": 5},
    ),
    "decided": (decided, {}, {"x": SPARSE}, {"found": int(np.count_nonzero(SPARSE))}),
}


def made(name: str, target: str) -> tuple[mlc.CompiledModel, dict[str, Array], dict[str, int]]:
    function, bounds, given, sizes = MODELS[name]
    return mlc.compile(function(), target, dims=bounds), given, sizes


def described(model: mlc.CompiledModel) -> Any:
    assert model.metadata.model is not None
    return model.metadata.model


def check(model: mlc.CompiledModel, name: str, found: Array, right: Array, n: Any) -> None:
    """Elements of the true shape come first; those of an extent are its number."""
    if name in n:
        assert int(found.reshape(())) == n[name]
        return
    (param,) = (p for p in described(model).outputs if p.name == name)
    shape = true_shape(param, n)
    assert shape == right.shape
    found = found.reshape(-1)[: right.size].reshape(shape)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("target", ["c", "host"])
@pytest.mark.parametrize("name", MODELS)
def test_exported(name: str, target: str, tmp_path: Path) -> None:
    model, given, sizes = made(name, target)
    header = model.export(tmp_path, "looped").read_text()
    ((extent, most),) = described(model).extents.items()
    assert f" *   {extent} is at most {most}." in header.splitlines()
    (tmp_path / "main.c").write_text(DRIVER)
    arrays = stored(described(model), given).values()
    (tmp_path / "images.f32").write_bytes(b"".join(array.tobytes() for array in arrays))
    if model.weights_bytes:
        (tmp_path / "looped.weights").write_bytes(model.weights_bytes)
    if target == "c":
        sources = [file.name for file in tmp_path.glob("looped*.c")]
    else:
        sources = ["looped.o"]
    program = compiled(gcc(), tmp_path, "main.c", "mlc_runtime.c", *sources, "-lm")
    assert classified(program) == "all is well"
    content = (tmp_path / "outputs").read_bytes()
    right = model.evaluate(given)
    for p in described(model).outputs:
        shape = [int(n) for n in p.shape]
        array = np.frombuffer(content, p.dtype, int(np.prod(shape))).reshape(shape)
        content = content[array.nbytes :]
        check(model, p.name, array, right.get(p.name, array), sizes)
    assert content == b""


OUT_OF_RANGE = """
#include <stdio.h>
#include <string.h>
#include "rows.h"
static _Alignas(MLC_ALIGNMENT) unsigned char memory[ROWS_MEMORY_BYTES + 1];
static _Alignas(MLC_ALIGNMENT) float x[ROWS_INPUT_X_ELEMENTS], y[ROWS_OUTPUT_Y_ELEMENTS];
int main(void) {
    static const int64_t wrong[] = {-1, 10, INT64_MAX, INT64_MIN, 3};
    for (int i = 0; i < 5; i++) {
        _Alignas(MLC_ALIGNMENT) int64_t n = wrong[i];
        memset(y, 1, sizeof y);
        int32_t status = mlc_model_run(&rows, NULL, memory, (void *[]){x, &n}, (void *[]){y});
        const char *input = mlc_status_input(&rows, status);
        int untouched = 1;
        for (size_t at = 0; at < sizeof y; at++) untouched &= ((unsigned char *)y)[at] == 1;
        printf("%d, %s, %s, %d\\n", status, input ? input : "no input",
               mlc_status_text(status), untouched);
    }
    return 0;
}
"""


@pytest.mark.parametrize("target", ["c", "host"])
def test_sizes_out_of_range_are_refused(target: str, tmp_path: Path) -> None:
    """Before anything is computed, and with the input's name."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "rows", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = mlc.compile(from_onnx(made, dims={"n": "<=9"}), target)
    model.export(tmp_path, "rows")
    (tmp_path / "main.c").write_text(OUT_OF_RANGE)
    code = "rows.c" if target == "c" else "rows.o"
    program = compiled(gcc(), tmp_path, "main.c", "mlc_runtime.c", code, "-lm")
    wrong = "an input says a size that is negative, or more than the model was compiled for"
    said = [f"-257, n, {wrong}, 1"] * 4 + ["0, no input, all is well, 0"]
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == said


@pytest.mark.parametrize("name", MODELS)
def test_run_on_the_board(name: str, tmp_path: Path) -> None:
    model, given, sizes = made(name, "host")
    model.save(tmp_path / "model.mlc")
    options = []
    for key, value in stored(described(model), given).items():
        np.save(tmp_path / f"{key}.npy", value)
        options += ["--input", f"{key}={key}.npy"]
    ended = run("model.mlc", *options, "--output", "results", at=tmp_path, machine="x86_64")
    assert (ended.returncode, ended.stderr) == (0, "")
    right = model.evaluate(given)
    for p in described(model).outputs:
        found = np.load(tmp_path / "results" / f"{p.name}.npy")
        check(model, p.name, found, right.get(p.name, found), sizes)
