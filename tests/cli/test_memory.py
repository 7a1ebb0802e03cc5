"""--memory: what weights take, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.artifact.models import digits
from tests.cli.command import Command

CHANNELS, SIDE = 256, 24


def convolution(file: Path) -> None:
    """One layer that Winograd's filtering makes faster, and its weights larger."""
    w = np.random.default_rng(0).normal(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
    value, shape = helper.make_tensor_value_info, [1, CHANNELS, SIDE, SIDE]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])],
        "convolution",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)


def test_weights_grow_as_far_as_they_may(mlc_deploy: Command, folder: Path) -> None:
    file = folder / "conv.onnx"
    convolution(file)
    plain = 4 * CHANNELS * CHANNELS * 9
    sizes = {
        memory: mlc_deploy(
            "inspect", file, "--target", "aarch64", "--json", "-", *options
        ).record["weights_bytes"]
        for memory, options in (
            ("small", ("--memory", "small")), ("balanced", ("--memory", "balanced")),
            ("fast", ("--memory", "fast")), ("by default", ()),
        )
    }  # fmt: skip
    points = {"small": 9, "balanced": 4 * 3, "fast": 6 * 6, "by default": 4 * 3}  # of each filter
    assert sizes == {memory: plain * count // 9 for memory, count in points.items()}


def test_what_is_refused(mlc_deploy: Command, folder: Path) -> None:
    assert mlc_deploy("--memory", "tiny").complaint == (
        "error: there is no such choice\n"
        "  in:  --memory tiny\n"
        "  try: small or balanced or fast\n"
        "-> 2"
    )
    saved = digits()
    saved.save(folder / "digits.mlc")
    assert mlc_deploy("digits.mlc", "--memory", "small").complaint == (
        f"error: the model is compiled already, for {saved.target.short_name}\n"
        "  in:  digits.mlc --memory\n"
        "  try: without --memory, or the model that it was compiled from\n"
        "-> 2"
    )
