"""Why a target computes an operator the way it does."""

from __future__ import annotations

from typing import Any

import pytest

import mlc_deploy as mlc
from mlc_deploy.cli.inspect import DEFAULT, inspected
from mlc_deploy.driver.model_graph import model_graph
from mlc_deploy.graph import Function
from mlc_deploy.ops import TensorType
from mlc_deploy.ops.explain import explain
from mlc_deploy.ops.strategy import implementations
from tests.cli.command import MODELS

TARGETS = ("aarch64", "armv7a", "x86_64", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")


def conv(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
    types = [
        TensorType((1, channels, 28, 28), "float32"),
        TensorType((filters, channels // groups, kernel, kernel), "float32"),
    ]
    pad = kernel // 2
    attrs = {"strides": (stride,) * 2, "dilations": (1, 1), "pads": (pad,) * 4, "groups": groups}
    return types, attrs


@pytest.mark.parametrize(
    ("layer", "first"),
    [
        (conv(64, 64, 3), "winograd_blocks"),
        (conv(64, 64, 3, stride=2), "conv2d_strided"),
        (conv(64, 64, 1), "conv2d_blocks"),
        (conv(3, 32, 3, stride=2), "conv2d_blocks"),
        (conv(64, 64, 3, groups=64), "conv2d_depthwise_blocks"),
        (conv(7, 7, 3, groups=7), "conv2d_depthwise"),
        (conv(7, 5, 3), "conv2d_direct"),
        (conv(6, 4, 3, groups=2), None),
    ],
)
def test_the_first_that_fits(layer: Any, first: str | None) -> None:
    types, attrs = layer
    found = explain("conv2d", types, attrs, mlc.Target("aarch64"))
    assert next((c.name for c in found if c.fits), None) == first
    assert len({c.name for c in found}) == len(found)


def test_every_implementation_says_what_it_needs() -> None:
    assert [i.name for i in implementations() if not i.needs] == []


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_taken_is_the_first_that_fits(target: str) -> None:
    to, plain = mlc.Target(target), list[Function]()

    def watch(name: str, function: Function, changed: bool) -> None:
        if name == "choose_plans":
            watch.done = True  # type: ignore[attr-defined]
        if not hasattr(watch, "done"):
            plain.append(function)

    graphs = model_graph(MODELS / "digits_cnn.onnx", to, watch=watch)
    kernels = inspected(graphs, plain[-1], to, "digits")["kernels"]
    chosen = [k for k in kernels if k["candidates"]]
    assert len(chosen) >= 5
    for kernel in chosen:
        fits = [c["name"] for c in kernel["candidates"] if c["fits"]]
        assert kernel["implementation"] == (fits[0] if fits else DEFAULT), kernel["layer"]
