"""Layers on images whose batch, height and width each run decides, against onnxruntime; and what
they execute, beside the same layers on images of a known size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_rpc import Session
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, armv7, board_named, boards_in_turn, local

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
MOST = {"n": 3, "h": 56, "w": 56}
SIZES = ((1, 56, 56), (3, 5, 5), (2, 7, 19), (1, 24, 9))
OPENINGS = ("n", "h", "w", "hw", "nhw")


def chain(
    nodes: Sequence[tuple[str, dict[str, Any], tuple[int, ...]]], channels: int
) -> ModelProto:
    """A model of nodes in a row: operator, attributes, shape of its weights if it has any."""
    rng, made, constants = np.random.default_rng(7), [], []
    name = "x"
    for number, (op, attributes, shape) in enumerate(nodes):
        inputs = [name]
        if shape:
            weights = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
            for letter, array in (("w", weights), ("b", rng.normal(size=shape[0]))):
                constants.append(
                    numpy_helper.from_array(array.astype(np.float32), f"{letter}{number}")
                )
                inputs.append(f"{letter}{number}")
        name = f"y{number}"
        made.append(helper.make_node(op, inputs, [name], **attributes))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", channels, "h", "w"])
    y = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b", "c", "d"])
    graph = helper.make_graph(made, "graph", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def window(k: int, stride: int = 1, **more: Any) -> dict[str, Any]:
    pads = {"pads": [k // 2] * 4} if "pads" not in more else {}
    return {"kernel_shape": [k, k], "strides": [stride, stride], **pads, **more}


RELU: tuple[str, dict[str, Any], tuple[int, ...]] = ("Relu", {}, ())
MODELS = {
    "3x3": chain([("Conv", window(3), (16, 16, 3, 3)), RELU], 16),
    "every second": chain([("Conv", window(3, 2), (16, 8, 3, 3))], 8),
    "far apart": chain([("Conv", window(3, dilations=[2, 3], pads=[1, 3, 2, 0]), (8, 8, 3, 3))], 8),
    "two groups": chain([("Conv", window(3, group=2), (16, 8, 3, 3))], 16),
    "pixel by pixel": chain([("Conv", window(1), (16, 24, 1, 1)), RELU], 24),
    "each third pixel": chain([("Conv", window(1, 3), (16, 8, 1, 1))], 8),
    "of colours": chain([("Conv", window(3, 2), (16, 3, 3, 3)), RELU], 3),
    "odd channels": chain([("Conv", window(3), (5, 6, 3, 3))], 6),
    "depthwise": chain([("Conv", window(3, group=16), (16, 1, 3, 3)), RELU], 16),
    "depthwise, every second": chain([("Conv", window(5, 2, group=16), (16, 1, 5, 5))], 16),
    "maxima": chain([("MaxPool", window(3, 2), ())], 16),
    "maxima of all that begin inside": chain([("MaxPool", window(2, 3, ceil_mode=1), ())], 16),
    "means": chain([("AveragePool", window(3, 2, count_include_pad=1), ())], 16),
    "means without the border": chain([("AveragePool", window(3, 2), ())], 16),
    "in a row": chain(
        [
            ("Conv", window(3, 2), (16, 3, 3, 3)),
            RELU,
            ("Conv", window(3, group=16), (16, 1, 3, 3)),
            ("Conv", window(1), (24, 16, 1, 1)),
            ("MaxPool", window(3, 2), ()),
        ],
        3,
    ),
}


def compiled(model: ModelProto, opening: str, target: str, size: Sequence[int]) -> Any:
    """The model with some dimensions open, the others of a size."""
    known = dict(zip("nhw", size, strict=True))
    dims: dict[str, Any] = {d: f"<={MOST[d]}" if d in opening else known[d] for d in "nhw"}
    return mlc.compile(from_onnx(model, dims=dims), target)


@pytest.mark.parametrize(("name", "board"), boards_in_turn(MODELS))
def test_any_size(name: str, board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    opening = OPENINGS[[*MODELS].index(name) % len(OPENINGS)]
    for opened, sizes in ((opening, SIZES[:1]), ("nhw", SIZES)):
        module = session.load(compiled(MODELS[name], opened, TARGETS[board], sizes[0]))
        channels = MODELS[name].graph.input[0].type.tensor_type.shape.dim[1].dim_value
        for n, *area in sizes:
            x = np.random.default_rng(n).normal(size=(n, channels, *area)).astype(np.float32)
            (wanted,) = reference(MODELS[name], {"x": x}).values()
            (found,) = module.run({"x": x}).values()
            assert found.shape == wanted.shape, (opened, x.shape)
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-4, err_msg=f"{opened}, {x.shape}")
        module.close()


@pytest.mark.parametrize("board", ["aarch64", "armv7", "local"])
def test_an_open_batch_beside_weights_that_may_grow_a_little(
    board: str, request: pytest.FixtureRequest
) -> None:
    """Minimal filtering makes these weights four times as large, so only some of the layers may
    have it, or have it with smaller tiles."""
    layer: Any = ("Conv", window(3), (128, 128, 3, 3))
    proto, size = chain([layer, RELU, layer], 128), (2, 14, 14)
    model = compiled(proto, "n", TARGETS[board], size)
    module = board_named(request, board).load(model)
    for n in (1, 2):
        x = np.random.default_rng(n).normal(size=(n, 128, 14, 14)).astype(np.float32)
        (wanted,) = reference(proto, {"x": x}).values()
        (found,) = module.run({"x": x}).values()
        np.testing.assert_allclose(found, wanted, 1e-3, 1e-3)
    module.close()


# What is open, and the most instructions of a layer by those where all is known. Copies of strips
# into a border, whole tiles at the ends of rows, and transforms of layouts cost the difference.
WORK = [
    ("3x3", "n", 1.1),  # by Winograd's filtering
    ("every second", "hw", 1.6),
    ("pixel by pixel", "h", 1.3),
    ("depthwise", "n", 1.1),
    ("depthwise", "hw", 1.6),
    ("maxima", "hw", 2.7),
    ("in a row", "nhw", 1.85),
]


@pytest.mark.parametrize(("name", "opening", "most"), WORK)
def test_open_sizes_execute_little_more(
    name: str, opening: str, most: float, aarch64: Session
) -> None:
    counts, size = [], SIZES[0]
    channels = MODELS[name].graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(0).normal(size=(1, channels, *size[1:])).astype(np.float32)
    for opened in ("", opening):
        module = aarch64.load(compiled(MODELS[name], opened, TARGETS["aarch64"], size))
        counts.append(sum(c.total for c in module.profile({"x": x}).run.counts or ()))
        module.close()
    assert 0 < counts[1] <= most * counts[0], counts


def test_norms_fold_where_sizes_are_open() -> None:
    """Extents of results are expressions; equal ones are one, so that layers stay one kernel."""
    norm = helper.make_node("BatchNormalization", ["y0", "s", "b", "m", "v"], ["normed"])
    model = chain([("Conv", window(3, 2), (16, 8, 3, 3))], 8)
    ones = np.ones(16, np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(ones, n) for n in "sbmv")
    model.graph.node.extend([norm, helper.make_node("Relu", ["normed"], ["z"])])
    model.graph.output[0].name = "z"
    found = compiled(model, "hw", "aarch64", SIZES[0])
    assert "conv2d_add_relu" in found.program.kernels


def test_a_view_of_a_product_has_room(local: Session) -> None:
    """The largest h * (w - 4) is smaller than what h * w - h * 4 may be: the view decides."""
    weights = f"float[2, 2, 1, 5] w = {{{', '.join('1' for _ in range(20))}}}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, h, w] x) => (float[1, 2, a, b] y) <{weights},
            float[2, 2, 2, 2] t = {{{", ".join(str(n) for n in range(16))}}}> {{
        c = Conv(x, w)  y = ConvTranspose <strides = [2, 2]> (c, t) }}"""
    model = parser.parse_model(text)
    module = local.load(mlc.compile(from_onnx(model, dims={"h": "<=9", "w": "<=9"}), "host"))
    for h, w in ((9, 9), (2, 5), (7, 8)):
        x = np.random.default_rng(h).normal(size=(1, 2, h, w)).astype(np.float32)
        (wanted,) = reference(model, {"x": x}).values()
        np.testing.assert_allclose(module.run({"x": x})["y"], wanted, 1e-4, 1e-4)
    module.close()
