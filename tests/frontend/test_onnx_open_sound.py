"""Sound of any length: strided convolutions of one dimension, and what has a row per result."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_rpc import Session
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, board_named, local

__all__ = ["aarch64", "local"]  # fixtures

MOST = 4000
KERNELS = ((127, 64), (7, 3), (3, 2))  # and strides: longer windows than tiles are chosen for


def model() -> onnx.ModelProto:
    """rows[1, m, 8] of sound[1, 1, n], to which the number of each is added, and then themselves as
    they were cut into halves and joined again."""
    random = np.random.default_rng(3)
    weights = {
        "k0": random.normal(0, 0.1, (8, 1, 127)), "k1": random.normal(0, 0.1, (8, 8, 7)),
        "k2": random.normal(0, 0.2, (8, 8, 3)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["sound", "k0"], ["c0"], strides=[64]),
        helper.make_node("Tanh", ["c0"], ["t0"]),
        helper.make_node("Conv", ["t0", "k1"], ["c1"], strides=[3]),
        helper.make_node("Conv", ["c1", "k2"], ["c2"], strides=[2]),
        helper.make_node("Transpose", ["c2"], ["rows"], perm=[0, 2, 1]),
    ]
    # The number of rows, as exporters compute it from the sound's: (n - 127) // 384 - 1
    numbers = {"first": [127], "every": [384], "one": [1], "zero": 0, "step": 1, "halves": [2, 4]}
    nodes += [
        helper.make_node("Shape", ["sound"], ["length"], start=2, end=3),
        helper.make_node("Sub", ["length", "first"], ["behind"]),
        helper.make_node("Div", ["behind", "every"], ["strides"]),
        helper.make_node("Sub", ["strides", "one"], ["count"]),
        helper.make_node("Squeeze", ["count"], ["scalar"]),
        helper.make_node("Range", ["zero", "scalar", "step"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "last"], ["column"]),
        helper.make_node("Concat", ["one", "count", "halves"], ["apart"], axis=0),
        helper.make_node("Reshape", ["rows", "apart"], ["cut"]),
        helper.make_node("Concat", ["one", "count", "whole"], ["together"], axis=0),
        helper.make_node("Reshape", ["cut", "together"], ["joined"]),
        helper.make_node("Add", ["rows", "column"], ["numbered"]),
        helper.make_node("Add", ["numbered", "joined"], ["result"]),
    ]
    constants = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()]
    every = {**numbers, "last": [1], "whole": [8]}
    constants += [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in every.items()]
    graph = helper.make_graph(
        nodes, "sound",
        [helper.make_tensor_value_info("sound", TensorProto.FLOAT, [1, 1, "n"])],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, [1, "m", 8])], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("board", ["local", "aarch64"])
def test_any_length(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    function = from_onnx(model(), dims={"n": f"<={MOST}"})
    module = session.load(mlc.compile(function, TARGETS[board]))
    for length in (MOST, 895, 896, 1278, 1279, 2500):
        given = {"sound": np.random.default_rng(length).normal(size=(1, 1, length)).astype("f4")}
        (right,) = reference(model(), given).values()
        found = module.run(given)["result"]
        assert found.shape == right.shape == (1, (length - 127) // 384 - 1, 8)
        np.testing.assert_allclose(found, right, 1e-4, 1e-5, err_msg=str(length))
    module.close()
