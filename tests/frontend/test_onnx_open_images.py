"""Images of any width: layers over them, on boards, against onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, armv7, board_named, boards_in_turn, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

MOST = 40
rng = np.random.default_rng(9)


def weights(*shape: int) -> str:
    numbers = ", ".join(f"{v:.3f}" for v in rng.normal(0, 0.3, np.prod(shape)))
    return f"Constant <value = float[{', '.join(map(str, shape))}] {{{numbers}}}> ()"


LAYERS = {
    "conv": f"k = {weights(4, 3, 3, 3)} y = Conv <pads = [1, 1, 1, 1]> (x, k)",
    "conv of blocks": (
        f"a = {weights(8, 3, 1, 1)} b = {weights(16, 8, 3, 3)} c = {weights(8, 16, 1, 1)}"
        "p = Conv(x, a) q = Relu(p)"
        "r = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (q, b) t = Relu(r) y = Conv(t, c)"
    ),
    "depthwise": f"k = {weights(3, 1, 3, 3)} y = Conv <group = 3, strides = [1, 2]> (x, k)",
    "same": f'k = {weights(4, 3, 3, 3)} y = Conv <auto_pad = "SAME_UPPER"> (x, k)',
    "transposed": f"k = {weights(3, 4, 2, 2)} y = ConvTranspose <strides = [2, 2]> (x, k)",
    "max": "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
    "mean": "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)",
    "mean of all": "y = GlobalAveragePool(x)",
    "repeated": (
        "s = Constant <value = float[4] {1, 1, 2, 3}> ()"
        'y = Resize <mode = "nearest", nearest_mode = "floor",'
        '    coordinate_transformation_mode = "asymmetric"> (x, , s)'
    ),
    "repeated by halves": (
        's = Constant <value = float[4] {1, 1, 2, 2}> () y = Resize <mode = "nearest"> (x, , s)'
    ),
    "linear": (
        's = Constant <value = float[4] {1, 1, 2, 2}> () y = Resize <mode = "linear"> (x, , s)'
    ),
    "linear, of half the size": (
        's = Constant <value = float[4] {1, 1, 0.5, 0.5}> ()y = Resize <mode = "linear"> (x, , s)'
    ),
    "nearest, of half the size": (
        's = Constant <value = float[4] {1, 1, 0.5, 0.5}> () y = Resize <mode = "nearest"> (x, , s)'
    ),
    "to a size": (
        's = Constant <value = int64[4] {1, 3, 8, 10}> () y = Resize <mode = "linear",'
        'coordinate_transformation_mode = "align_corners"> (x, , , s)'
    ),
    "to the size of another": (
        "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) s = Shape(x)"
        'y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">'
        "(p, , , s)"
    ),
    "reflected": (
        "s = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()"
        'y = Pad <mode = "reflect"> (x, s)'
    ),
    "normalized": (
        "s = Constant <value = float[3] {1, 2, 3}> () y = InstanceNormalization(x, s, s)"
    ),
}


def model(layer: str) -> ModelProto:
    graph = f"g (float[1, 3, 8, w] x) => (float[n, c, h, v] y) {{ {layer} }}"
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')


@pytest.mark.parametrize(("name", "board"), boards_in_turn(LAYERS))
def test_any_width(name: str, board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    proto = model(LAYERS[name])
    function = from_onnx(proto, dims={"w": f"<={MOST}"})
    module = session.load(mlc.compile(function, TARGETS[board]))
    for width in (MOST, 3, 8, 13):
        given: dict[str, Any] = {"x": rng.standard_normal((1, 3, 8, width)).astype(np.float32)}
        (right,) = reference(proto, given).values()
        found = module.run(given)["y"]
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, 1e-4, 1e-5, err_msg=str(width))
    module.close()


def test_cubic_weights_of_an_open_width_are_refused() -> None:
    layer = 's = Constant <value = float[4] {1, 1, 2, 2}> () y = Resize <mode = "cubic"> (x, , s)'
    with pytest.raises(ImporterError) as caught:
        from_onnx(model(layer), dims={"w": "<=40"})
    assert str(caught.value) == (
        "an open dimension is resized in mode 'cubic', by 'half_pixel'\n"
        "  in:  the model, node 'Resize_1' (Resize)\n"
        "  try: linear or nearest, without antialias, by half_pixel, pytorch_half_pixel, "
        "asymmetric, align_corners"
    )
