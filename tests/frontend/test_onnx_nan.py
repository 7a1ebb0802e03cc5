"""NaN, infinities and ties where something is ordered, indexed or rounded, against onnxruntime:
docs/reference/nan.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlc_deploy import backend
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate
from tests.onnx_models import one_node, reference

Array = NDArray[Any]
BOARDS = ("local://", "qemu://cortex-a7", "qemu://cortex-a72")
NAN, INF = np.nan, np.inf


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def rows(seed: int, count: int = 12, length: int = 23) -> Array:
    """Few numbers, so that many are equal; NaN and infinities among them."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (count, length)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = NAN
    x[rng.random(x.shape) < 0.1] = INF
    x[rng.random(x.shape) < 0.1] = -INF
    x[0] = NAN
    return x


ROUNDED = np.resize(floats(NAN, INF, -INF, 1e20, -1e20, 0.5, 1.5, 2.5, -0.5, 3e38, -1.5), 67)
GRID = np.array(
    [NAN, 0, 0, NAN, INF, 0, -INF, 0, NAN, NAN, 0.3, INF, 0.1, -0.2, 1, 1, -1, -1], np.float32
).reshape(1, 3, 3, 2)
IMAGE = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [NAN, 0, 1, 1]]], np.float32)

CASES: dict[str, tuple[Any, dict[str, Array]]] = {}
for largest in (0, 1):
    for k in (1, 5, 23):
        given = {"x": rows(k), "k": np.array([k], np.int64)}
        CASES[f"TopK {largest} {k}"] = (
            one_node("TopK", given, 21, constants=("k",), outputs=("y", "places"), largest=largest),
            given,
        )
for op in ("ArgMax", "ArgMin"):
    for last in (0, 1):
        given = {"x": rows(3)}
        CASES[f"{op} {last}"] = one_node(op, given, 21, axis=1, select_last_index=last), given
        given = {"x": rows(4, 23, 12)}
        CASES[f"{op} {last} of columns"] = (
            one_node(op, given, 21, axis=0, select_last_index=last),
            given,
        )
for stored in ("int8", "uint8", "int16", "uint16"):
    given = {"x": ROUNDED, "scale": np.array(0.5, np.float32), "zero": np.array(3, stored)}
    CASES[f"QuantizeLinear {stored}"] = (
        one_node("QuantizeLinear", given, 21, constants=("scale", "zero")),
        given,
    )
for name, x in {
    "zeros": floats(0, 0), "zeros of both signs": floats(0, -0.0), "NaN": floats(NAN, 1),
    "only NaN": floats(NAN, NAN), "inf": floats(INF, 1), "-inf": floats(-INF, 1),
    "denormal": floats(2e-38, 0), "more": floats(*range(-9, 20), NAN),
}.items():  # fmt: skip
    CASES[f"DynamicQuantizeLinear {name}"] = (
        one_node("DynamicQuantizeLinear", {"x": x}, 21, outputs=("y", "scale", "zero")),
        {"x": x},
    )
for mode in ("linear", "nearest", "cubic"):
    for padding in ("zeros", "border", "reflection"):
        for corners in (0, 1):
            if mode == "cubic" and padding != "zeros":
                continue
            given = {"x": IMAGE, "grid": GRID}
            CASES[f"GridSample {mode} {padding} {corners}"] = (
                one_node(
                    "GridSample", given, 20, mode=mode, padding_mode=padding, align_corners=corners
                ),
                given,
            )
for low, high in ((-1, 1), (NAN, 1), (-1, NAN), (3, 1)):
    given = {
        "x": floats(NAN, 1, -3, INF, -INF, 0.5),
        "low": np.array(low, np.float32),
        "high": np.array(high, np.float32),
    }
    CASES[f"Clip {low} {high}"] = one_node("Clip", given, 13, constants=("low", "high")), given
for op in ("Min", "Max"):
    given = {"a": floats(NAN, 1, 2, INF, NAN), "b": floats(1, NAN, 3, NAN, NAN)}
    CASES[op] = one_node(op, given, 13), given
for name, scores in {"scores": [0.5, 0.9, NAN, 0.3], "ties": [0.5, 0.5, 0.5, 0.5]}.items():
    given = {
        "boxes": BOXES, "scores": np.array([[scores]], np.float32), "most": np.array([4], np.int64),
        "overlap": floats(0.5), "least": floats(0.1),
    }  # fmt: skip
    CASES[f"NonMaxSuppression {name}"] = (
        one_node("NonMaxSuppression", given, 11, constants=("most", "overlap", "least")),
        given,
    )


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str) -> None:
    """On this machine, and the reference that boards are compared with."""
    check(name, BOARDS[0])


@pytest.mark.numbers
@pytest.mark.parametrize("board", BOARDS[1:])
@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime_on_boards(name: str, board: str) -> None:
    check(name, board)


def check(name: str, board: str) -> None:
    model, given = CASES[name]
    inputs = {i.name: np.asarray(given[i.name]) for i in model.graph.input}
    wanted = reference(model, inputs)
    defined = evaluate(from_onnx(model), list(inputs.values()))
    found = dict(zip(wanted, backend.run_model(model, inputs, board), strict=True))
    for output, right in wanted.items():
        np.testing.assert_allclose(defined[output], right, rtol=1e-6, err_msg="the reference")
        np.testing.assert_allclose(found[output], right, rtol=1e-5, err_msg=board)
