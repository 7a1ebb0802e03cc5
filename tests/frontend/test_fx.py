"""What torch.fx traced, compiled: as it is, and with converters of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError, ShapeError
from mlc_deploy.frontend import FxNode, from_fx
from mlc_deploy.graph import evaluate

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def classifier() -> Any:
    """Convolution, linear layers, relu, pooling and flattening: modules, functions and methods."""

    class Net(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 3, padding=1)
            self.relu = torch.nn.ReLU()
            self.pool = torch.nn.MaxPool2d(2)
            self.linear = torch.nn.Linear(4 * 4 * 4, 10)

        def forward(self, x: Any) -> Any:
            y = self.pool(self.relu(self.conv(x)))
            return torch.nn.functional.relu(self.linear(torch.flatten(y, 1))).add(1.0)

    torch.manual_seed(0)
    return torch.fx.symbolic_trace(Net().eval())


def agrees(function: Any, traced: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (found,) = evaluate(function, {"x": x}).values()
    with torch.no_grad():
        np.testing.assert_allclose(found, traced(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_traced_modules_compile() -> None:
    traced = classifier()
    model = mlc.compile(traced, "host", shapes={"x": (2, 1, 8, 8)})
    agrees(model.reference, traced, (2, 1, 8, 8))
    x = np.random.default_rng(1).normal(size=(2, 1, 8, 8)).astype(np.float32)
    with mlc.VirtualMachine(model) as vm, torch.no_grad():
        right = traced(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(vm["main"](x), right, rtol=1e-4, atol=1e-5)


def test_converters_by_type_function_and_method() -> None:
    traced = classifier()
    called: list[str] = []

    def linear(node: FxNode, x: Any) -> Any:
        called.append(type(node.module).__name__)
        weight = node.constant(node.module.weight.detach().numpy(), "float32")
        bias = node.constant(node.module.bias.detach().numpy(), "float32")
        return node.emit("add", node.emit("dense", x, weight, transpose_b=True), bias)

    def flatten(node: FxNode, x: Any) -> Any:
        called.append(f"flatten from {node.args[1]}")
        return node.emit("reshape", x, shape=(2, 64))

    def add(node: FxNode, x: Any) -> Any:
        called.append(f"add {node.args[1]}")
        return node.emit("add", x, node.constant(node.args[1], "float32"))

    own = {torch.nn.Linear: linear, torch.flatten: flatten, torch.Tensor.add: add}
    function = from_fx(traced, {"x": (2, 1, 8, 8)}, converters=own)
    assert called == ["flatten from 1", "Linear", "add 1.0"]
    agrees(function, traced, (2, 1, 8, 8))


def test_refusals(golden: Callable[..., None]) -> None:
    traced = classifier()
    messages = []
    for shapes, own in (
        ({}, {}),
        ({"y": (1,)}, {}),
        ({"x": (2, 3, 8, 8)}, {}),
        ({"x": (2, 1, 8, 8)}, {torch.nn.ReLU: lambda node, x: node.emit("reshape", x, shape=(5,))}),
        ({"x": (2, 1, 8, 8)}, {torch.flatten: lambda node, x: x}),
    ):
        with pytest.raises((ImporterError, ShapeError)) as caught:
            from_fx(traced, shapes, converters=own)
        messages.append(str(caught.value))
    golden("\n\n".join(messages), "fx_refusals")
