"""Threads share the work of a kernel: each large one has several tasks, whatever its shape."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import mlc_deploy as mlc

HEADER = '<ir_version: 8, opset_import: ["" : 17]> g '
WEIGHTS = ("w", "b")
MANY = {  # models whose kernels have much to do
    "a row times a matrix": "(float[1,512] x, float[512,1000] w) => (float[1,1000] y)"
    " { y = MatMul (x, w) }",
    "a few rows": "(float[4,256] x, float[256,256] w) => (float[4,256] y) { y = MatMul (x, w) }",
    "an open size": "(float[1,16,H,W] x, float[32,16,3,3] w) => (float[1,32,H,W] y)"
    " { y = Conv <pads=[1,1,1,1]> (x, w) }",
    "an open size, pointwise": "(float[1,16,H,W] x, float[32,16,1,1] w) => (float[1,32,H,W] y)"
    " { y = Conv (x, w) }",
    "an open size, few channels": "(float[1,3,H,W] x, float[32,3,3,3] w) => (float[1,32,H,W] y)"
    " { y = Conv <pads=[1,1,1,1]> (x, w) }",
    "an open width": "(float[1,16,24,W] x, float[32,16,3,3] w) => (float[1,32,24,W] y)"
    " { y = Conv <pads=[1,1,1,1]> (x, w) }",
    "an open size, transposed": "(float[1,16,H,W] x, float[16,32,2,2] w) => (float[1,32,P,Q] y)"
    " { y = ConvTranspose <strides=[2,2]> (x, w) }",
    "a factor for each channel": "(float[1,16,56,56] x, float[1,16,1,1] s) =>"
    " (float[1,16,56,56] y) { r = Relu (x) m = MaxPool <kernel_shape=[3,3],pads=[1,1,1,1]> (r)"
    " y = Mul (m, s) }",
    "strides": "(float[1,64,56,56] x, float[128,64,3,3] w) => (float[1,128,28,28] y)"
    " { y = Conv <pads=[1,1,1,1],strides=[2,2]> (x, w) }",
    "a transposed matrix": "(float[12,128,64] x, float[12,128,64] v) => (float[12,128,128] y)"
    " { t = Transpose <perm=[0,2,1]> (v) y = MatMul (x, t) }",
    "matrices of odd width": "(float[12,128,64] x, float[12,64,77] v) => (float[12,128,77] y)"
    " { y = MatMul (x, v) }",
}


def kernels(text: str, target: str) -> dict[str, str | int]:
    """The tasks of each kernel of floats: a number, or the name of a dynamic extent."""
    model = parser.parse_model(HEADER + text)
    rng = np.random.default_rng(0)
    for given in [i for i in model.graph.input if i.name in WEIGHTS]:
        shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, given.name))
        model.graph.input.remove(given)
    open_ = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    compiled = mlc.compile(model, target, dims={name: "<=128" for name in open_ if name})
    found = compiled.metadata.kernels.values()
    return {k.name: k.tasks for k in found if k.params[-1].dtype == "float32"}


@pytest.mark.parametrize("name", MANY)
def test_large_kernels_have_several_tasks(name: str) -> None:
    for kernel, tasks in kernels(MANY[name], "aarch64").items():
        assert isinstance(tasks, str) or tasks >= 4, f"{kernel}: {tasks}"


@pytest.mark.parametrize("target", ["armv7a", "x86_64"])
@pytest.mark.parametrize("name", ["a row times a matrix", "an open size"])
def test_of_any_cpu(name: str, target: str) -> None:
    assert all(isinstance(n, str) or n >= 4 for n in kernels(MANY[name], target).values())


def test_a_small_kernel_is_one_task() -> None:
    """Waking threads would cost more than it saves."""
    text = "(float[1,64] x, float[64,256] w) => (float[1,256] y) { y = MatMul (x, w) }"
    assert list(kernels(text, "aarch64").values()) == [1]


def test_a_thread_keeps_a_strip_of_an_open_size() -> None:
    model = parser.parse_model(HEADER + MANY["an open size"])
    assert isinstance(model, onnx.ModelProto)
    weights = np.ones((32, 16, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    compiled = mlc.compile(model, "aarch64", dims={"H": "<=128", "W": "<=128"})
    workspaces = [k.workspace for k in compiled.metadata.kernels.values()]
    assert max(workspaces) < 16 * 130 * 140 * 4 / 8
