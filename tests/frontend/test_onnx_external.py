"""Weights in files of their own: mapped, at offsets, over 2 GB, and what is refused."""

from __future__ import annotations

import mmap
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import Constant, evaluate

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def external(name: str, shape: list[int], **info: Any) -> TensorProto:
    """A float32 tensor whose data is said to be elsewhere."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in info.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write(path: Path, weights: list[TensorProto], nodes: list[Any], shape: list[int]) -> None:
    """A model of x and the weights to y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "graph", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def added(tmp_path: Path, **info: Any) -> Path:
    """A model that adds the weights w, [2, 3], to x."""
    path = tmp_path / "model.onnx"
    add = helper.make_node("Add", ["x", "w"], ["y"])
    write(path, [external("w", [2, 3], **info)], [add], [2, 3])
    return path


def test_offsets(tmp_path: Path) -> None:
    path = added(tmp_path, location="w.bin", offset=64, length=24)
    (tmp_path / "w.bin").write_bytes(bytes(64) + (10 * X).tobytes() + bytes(8))
    function = from_onnx(path)
    np.testing.assert_array_equal(evaluate(function, [X])["y"], 11 * X)
    (weights,) = [a for a in function.bindings[0].call.args if isinstance(a, Constant)]
    view: Any = weights.value
    while isinstance(view, np.ndarray):
        view = view.base
    assert isinstance(getattr(view, "obj", view), mmap.mmap)  # a view of the file


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"length": 20}, "24 bytes from 0 on of 'w.bin', which has 32 there and says 20"),
        ({"offset": 16}, "24 bytes from 16 on of 'w.bin', which has 16 there and says nothing"),
        ({"offset": 99}, "24 bytes from 99 on of 'w.bin', which has 0 there and says nothing"),
    ],
)
def test_refusals(tmp_path: Path, info: dict[str, int], message: str) -> None:
    path = added(tmp_path, location="w.bin", **info)
    (tmp_path / "w.bin").write_bytes(bytes(32))
    with pytest.raises(ImporterError, match=message):
        from_onnx(path)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"offset": -8}, "tensor 'w' is said to be at -8, of 0 bytes, of 'w.bin'"),
        ({"length": -4}, "tensor 'w' is said to be at 0, of -4 bytes, of 'w.bin'"),
        ({"offset": 1 << 70}, "tensor 'w' is said to be at 1,180,591,620,717,411,303,424, of 0"),
        ({"offset": 1 << 60}, "24 bytes from 1152921504606846976 on of 'w.bin', which has 0 there"),
        ({"length": 1 << 61}, "which has 32 there and says 2305843009213693952"),
        ({"offset": "abc"}, "the place of tensor 'w' in another file is not a number"),
        ({"offset": "9" * 6000}, "the place of tensor 'w' in another file is not a number"),
    ],
)
def test_places_that_are_none(tmp_path: Path, info: dict[str, Any], message: str) -> None:
    path = added(tmp_path, location="w.bin", **info)
    (tmp_path / "w.bin").write_bytes(bytes(32))
    with pytest.raises(ImporterError) as error:
        from_onnx(path)
    assert message in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_weights_in_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for location in ("pipe", ".", "/dev/zero", "", "a\0b", "a" * 5000):
        with pytest.raises(ImporterError, match="are missing"):
            from_onnx(added(tmp_path, location=location))


def test_a_shape_below_nothing(tmp_path: Path) -> None:
    """Two negative extents have a positive product."""
    path = tmp_path / "model.onnx"
    add = helper.make_node("Add", ["x", "w"], ["y"])
    write(path, [external("w", [-2, -3], location="w.bin")], [add], [2, 3])
    (tmp_path / "w.bin").write_bytes(bytes(24))
    with pytest.raises(ImporterError, match=r"-2, -3|Negative dimension"):
        from_onnx(path)


def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """A sparse file of 2.5 GB: its end is reached, and hardly any of it is read."""
    rows = 5 * (1 << 20)
    path, data = tmp_path / "model.onnx", tmp_path / "w.bin"
    with data.open("wb") as file:
        file.truncate(rows * 128 * 4)
        file.seek(-128 * 4, 2)
        file.write(np.arange(128, dtype=np.float32).tobytes())
    gather = helper.make_node("Gather", ["w", "last"], ["row"], axis=0)
    add = helper.make_node("Add", ["x", "row"], ["y"])
    last = helper.make_tensor("last", TensorProto.INT64, [1], [-1])
    write(path, [external("w", [rows, 128], location="w.bin"), last], [gather, add], [1, 128])
    tracemalloc.start()
    function = from_onnx(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    x = np.ones((1, 128), np.float32)
    np.testing.assert_array_equal(evaluate(function, [x])["y"], np.arange(128)[None] + x)
    assert peak < 50e6
