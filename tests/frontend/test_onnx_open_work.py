"""What layers of a dynamic dimension execute: hardly more than those of that size, and the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, parser

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
MOST = 256
rng = np.random.default_rng(5)

# What computes y of x[…, n, …], and how many times the instructions of the size 200 it may execute.
LAYERS: dict[str, tuple[str, float]] = {
    "sum": ("float[16, n] x) => (float[16, 1] y) { y = ReduceSum(x, last)", 1.2),
    "product": ("float[16, n] x) => (float[16, 1] y) { y = ReduceProd(x, last)", 1.2),
    "sum of all": ("float[n, 8] x) => (float[1, 1] y) { y = ReduceSum(x)", 1.2),
    "squares": ("float[n, 6] x) => (float[1, 1] y) { y = ReduceSumSquare(x)", 1.2),
    "rows": ("float[n, 6] x) => (float[n, 1] y) { y = ReduceMean(x, last)", 1.2),
    "largest of bytes": ("int8[16, n] x) => (int8[16, 1] y) { y = ReduceMax(x, last)", 1.3),
    "halves": ("float16[16, n] x) => (float16[16, 1] y) { y = ReduceMean(x, last)", 1.2),
    "place": ("float[16, n] x) => (int64[16, 1] y) { y = ArgMax <axis = 1> (x)", 1.2),
    "length": ("float[16, n] x) => (float[16, 1] y) { y = ReduceL2(x, last)", 1.3),
    "softmax": ("float[16, n] x) => (float[16, n] y) { y = Softmax(x)", 1.1),
    "scores": ("float[2, 2, n, n] x) => (float[2, 2, n, n] y) { y = Softmax(x)", 1.2),
    "log": ("float[16, n] x) => (float[16, n] y) { y = LogSoftmax(x)", 1.2),
    "channels": ("float[1, 8, n, 5] x) => (float[1, 8, 1, 1] y) { y = GlobalAveragePool(x)", 1.3),
    "unit": ("float[16, n] x) => (float[16, n] y) { y = LpNormalization(x)", 1.2),
    "heads": (
        """float[1, n, 4, 32] x) => (float[1, 4, n, 32] y) {
        y = Transpose <perm = [0, 2, 1, 3]> (x)""",
        1.2,
    ),
    "blocks": (
        "float[1, 16, 20, n] x) => (float[1, 4, 40, m] y) { y = DepthToSpace <blocksize = 2> (x)",
        1.2,
    ),
    "twice": (
        """float[1, 2, 20, n] x) => (float[1, 2, 40, m] y) {
        s = Constant <value = float[4] {1, 1, 2, 2}> ()  y = Resize <mode = "nearest"> (x, , s)""",
        1.2,
    ),
    "columns": (
        """float[64, n] x) => (float[n, 48] y) {
        s = Constant <value = int64[2] {64, 48}> ()
        w = ConstantOfShape <value = float[1] {0.5}> (s)  y = Gemm <transA = 1> (x, w)""",
        1.2,
    ),
}


def model(name: str) -> ModelProto:
    last = "<int64[1] last = {1}>"
    text = f'<ir_version: 8, opset_import: ["" : 20]> g ({LAYERS[name][0]} }}'
    return parser.parse_model(text.replace(") {", f") {last} {{", 1))


def given(proto: ModelProto, size: int) -> dict[str, Array]:
    kind = proto.graph.input[0].type.tensor_type
    shape = [d.dim_value or size for d in kind.shape.dim]
    dtype = {1: np.float32, 3: np.int8, 10: np.float16}[kind.elem_type]
    return {"x": np.asarray(rng.uniform(-2, 2, shape) * (40 if dtype == np.int8 else 1), dtype)}


@pytest.mark.parametrize("name", LAYERS)
def test_work_of_an_open_dimension(name: str, aarch64: Session) -> None:
    counts = []
    for dims in ({"n": f"<={MOST}"}, {"n": 200}):
        compiled = mlc.compile(from_onnx(model(name), dims=dims), TARGETS["aarch64"])
        run = aarch64.load(compiled).profile(given(model(name), 200))
        assert run.run.counts is not None
        counts.append(sum(c.total for c in run.run.counts))
    assert counts[0] <= LAYERS[name][1] * counts[1], counts


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
@pytest.mark.parametrize("name", LAYERS)
def test_any_length(name: str, board: str, request: pytest.FixtureRequest) -> None:
    """Shorter than a vector, whole vectors, some left over; a number that is none stays none."""
    proto = model(name)
    compiled = mlc.compile(from_onnx(proto, dims={"n": f"<={MOST}"}), TARGETS[board])
    module = board_named(request, board).load(compiled)
    for size in (MOST, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 127, MOST - 1):
        inputs = given(proto, size)
        if inputs["x"].dtype == np.float32 and size == 17 and name != "place":
            inputs["x"].reshape(-1)[16] = np.nan
        (found,), (wanted,) = module.run(inputs).values(), reference(proto, inputs).values()
        assert found.dtype == wanted.dtype
        few = 1e-2 if found.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(found, wanted, few, few, err_msg=f"{size}")
    module.close()
