"""Loops, branches and recurrent layers of open dimensions, on boards, against onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, armv7, board_named, boards_in_turn, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
INPUTS, HIDDEN = 5, 12
MOST = {"seq": 20, "batch": 4}
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
rng = np.random.default_rng(4)

SCAN = """
g (float[seq, 4] x, float[4] s0) => (float[4] s, float[seq, 4] ys) {
    s, ys = Scan <num_scan_inputs = 1, DIRECTIONS
        body = b (float[4] a, float[4] e) => (float[4] o, float[4] p)
        { o = Sub(e, a)  p = Mul(o, e) }> (s0, x)
}"""
TEXTS = {
    "scan": SCAN.replace("DIRECTIONS", ""),
    "backwards": SCAN.replace(
        "DIRECTIONS", "scan_input_directions = [1], scan_output_directions = [1],"
    ),
    "of rows put together": """
g (float[seq, 4] x, float[4] s0) => (float[4] s, float[k, 4] y) {
    xx = Concat <axis = 0> (x, x)
    s, ys = Scan <num_scan_inputs = 1,
        body = b (float[4] a, float[4] e) => (float[4] o, float[4] p)
        { o = Sub(e, a)  p = Mul(o, e) }> (s0, xx)
    y = Add(xx, ys)
}""",
    "open elements": """
g (float[6, seq] x, float[seq] s0) => (float[seq] s, float[6, seq] ys) {
    s, ys = Scan <num_scan_inputs = 1,
        body = b (float[seq] a, float[seq] e) => (float[seq] o, float[seq] p)
        { o = Add(a, e)  t = Tanh(o)  p = Mul(t, e) }> (s0, x)
}""",
    "a trip count": """
g (float[seq, 4] x, float[4] s0) => (float[4] s, float[seq, 4] ys) {
    shape = Shape <start = 0, end = 1> (x)
    iterations = Squeeze(shape)
    go = Constant <value = bool {1}> ()
    s, ys = Loop <body = b (int64 i, bool c, float[4] a) => (bool d, float[4] o, float[4] p)
        { d = Identity(c)  e = Gather(x, i)  o = Add(a, e)  p = Sin(o) }> (iterations, go, s0)
}""",
    "an open state": """
g (float[seq, 4] x) => (float[seq, 4] s) {
    iterations = Constant <value = int64 {50}> ()
    go = Constant <value = bool {1}> ()
    limit = Constant <value = float {3.0}> ()
    s = Loop <body = b (int64 i, bool c, float[seq, 4] a) => (bool d, float[seq, 4] o) {
        o = Add(a, x)  size = Abs(o)  most = ReduceMax <keepdims = 0> (size)
        d = Less(most, limit) }> (iterations, go, x)
}""",
    "results until data say so": """
g (float[seq, 4] x) => (float[seq, 4] s, float[k] ys, float w) {
    iterations = Constant <value = int64 {50}> ()
    go = Constant <value = bool {1}> ()
    limit = Constant <value = float {3.0}> ()
    s, ys = Loop <body = b (int64 i, bool c, float[seq, 4] a) => (bool d, float[seq, 4] o, float m)
        { o = Add(a, x)  size = Abs(o)  m = ReduceMax <keepdims = 0> (size)
        d = Less(m, limit) }> (iterations, go, x)
    w = ReduceMean <keepdims = 0> (ys)
}""",
    "a branch within": """
g (float[seq, 4] x, float[4] s0) => (float[4] s, float[seq, 4] ys) {
    zero = Constant <value = float {0.0}> ()
    s, ys = Scan <num_scan_inputs = 1,
        body = b (float[4] a, float[4] e) => (float[4] o, float[4] p) {
            sum = ReduceSum <keepdims = 0> (e)
            positive = Greater(sum, zero)
            o = If (positive) <
                then_branch = t () => (float[4] q) {
                    w = ReduceMean <keepdims = 0> (x)  q = Mul(a, w) },
                else_branch = f () => (float[4] r) { r = Add(a, e) }>
            p = Tanh(o) }> (s0, x)
}""",
    "a branch": """
g (float[seq, 4] x) => (float[seq, 4] y) {
    zero = Constant <value = float {0.0}> ()
    sum = ReduceSum <keepdims = 0> (x)
    positive = Greater(sum, zero)
    y = If (positive) <
        then_branch = t () => (float[seq, 4] o) { o = Tanh(x) },
        else_branch = f () => (float[seq, 4] u) { a = Neg(x)  u = Exp(a) }>
}""",
}  # fmt: skip


def of_text(name: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>{TEXTS[name]}')


def recurrent(op: str, gates: int) -> ModelProto:
    """Both directions, texts of their own lengths in a batch of any size."""

    def known(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)

    weights = [
        known("w", 2, gates * HIDDEN, INPUTS),
        known("r", 2, gates * HIDDEN, HIDDEN),
        known("b", 2, 2 * gates * HIDDEN),
    ]
    node = helper.make_node(
        op, ["x", "w", "r", "b", "lengths"], ["y", "h"], hidden_size=HIDDEN,
        direction="bidirectional",
    )  # fmt: skip
    shapes: dict[str, list[int | str]] = {
        "x": ["seq", "batch", INPUTS],
        "y": ["seq", 2, "batch", HIDDEN],
        "h": [2, "batch", HIDDEN],
    }
    x, y, h = (helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in shapes.items())
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"])
    graph = helper.make_graph([node], "g", [x, lengths], [y, h], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def given_to(proto: ModelProto, sizes: dict[str, int]) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for info in proto.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.INT32:
            made[info.name] = rng.integers(1, sizes["seq"] + 1, shape).astype(np.int32)
        else:
            made[info.name] = rng.standard_normal(shape).astype(np.float32)
    return made


def check(proto: ModelProto, session: Session, target: str, sizes: list[dict[str, int]]) -> None:
    compiled = mlc.compile(from_onnx(proto, dims={k: f"<={MOST[k]}" for k in sizes[0]}), target)
    module = session.load(compiled)
    for one in sizes:
        inputs = given_to(proto, one)
        found = module.run(inputs)
        for name, wanted in reference(proto, inputs).items():
            assert found[name].shape == wanted.shape and found[name].dtype == wanted.dtype
            np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-4, err_msg=f"{name}, {one}")
    module.close()


@pytest.mark.parametrize(("name", "board"), boards_in_turn(TEXTS))
def test_control(name: str, board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    check(of_text(name), session, TARGETS[board], [{"seq": n} for n in (1, 20, 3)])


@pytest.mark.parametrize(("op", "board"), boards_in_turn(GATES))
def test_recurrent(op: str, board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    sizes = [{"seq": n, "batch": k} for n, k in ((1, 1), (20, 4), (7, 3))]
    check(recurrent(op, GATES[op]), session, TARGETS[board], sizes)
