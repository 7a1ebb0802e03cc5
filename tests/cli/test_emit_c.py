"""C of kernels that hold another machine's instructions is refused, with the command that works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.command import Command

TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76"


def int8_product(path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.INT8, [16, 64])
    y = helper.make_tensor_value_info("y", TensorProto.INT8, [16, 32])
    weights = np.random.default_rng(0).integers(-9, 9, (64, 32)).astype(np.int8)
    constants = {
        "sx": np.float32(0.1), "z": np.int8(0), "w": weights, "sw": np.float32(0.1),
        "sy": np.float32(0.5),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", "sx", "z", "w", "sw", "z", "sy", "z"], ["y"])
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph([node], "int8", [x], [y], tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


def test_intrinsics_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    int8_product(tmp_path / "int8.onnx")
    command = Command(capsys)
    said = command(str(tmp_path / "int8.onnx"), "--target", TARGET, "--emit", "c").complaint
    assert said == (
        "error: no C for T.llvm.aarch64.neon.sdot.v4i32.v16i8 of int32x4\n"
        "  in:  dense_requantize\n"
        "  try: --target c --emit c\n"
        "-> 1"
    )
    advised = command(str(tmp_path / "int8.onnx"), "--target", "c", "--emit", "c")
    assert advised.status == 0 and "int8_t *restrict" in advised.stdout
