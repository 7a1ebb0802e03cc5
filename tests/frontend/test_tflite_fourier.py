"""Fourier transforms of .tflite files against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_tflite
from tests.frontend.test_tflite_ops import agree
from tests.tflite_models import Model, drawn

pytest.importorskip("ai_edge_litert", reason="needs LiteRT: pip install ai-edge-litert")


def transformed(shape: Sequence[int], lengths: Sequence[int]) -> tuple[Model, int, list[int]]:
    """A model of one transform; its output and that one's shape."""
    model = Model()
    x = model.input(shape)
    result = [*shape[:-2], lengths[0], lengths[1] // 2 + 1]
    y = model.tensor(result, "complex64")
    model.op("RFFT2D", [x, model.constant(lengths, "int32")], [y], "Rfft2dOptions")
    return model, y, result


def real(model: Model, name: str, x: int, shape: Sequence[int]) -> None:
    """Ends the model with an operator that gives real numbers."""
    model.outputs.append(model.tensor(shape))
    model.op(name, [x], [model.outputs[-1]])


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        ((1, 1, 512), (1, 512)),
        ((2, 1, 400), (1, 512)),  # filled with zeros
        ((3, 1, 96), (1, 64)),  # cut
        ((2, 3, 8, 16), (8, 16)),
        ((5, 20), (8, 16)),
        ((2, 3, 4), (1, 4)),
        ((3, 4), (2, 2)),
        ((3, 4), (4, 2)),
    ],
)
def test_transforms(shape: Sequence[int], lengths: Sequence[int]) -> None:
    model, y, result = transformed(shape, lengths)
    for name in ("REAL", "IMAG", "COMPLEX_ABS"):
        real(model, name, y, result)
    agree(model, [drawn(np.random.default_rng(0), shape, "float32")])


MOVES: list[tuple[str, Sequence[int], list[Any], dict[str, Any]]] = [
    ("SQUEEZE", (2, 9), [], {"options": "SqueezeOptions", "SqueezeDims": [1]}),
    ("RESHAPE", (9, 2), [[9, 2]], {}),
    ("EXPAND_DIMS", (2, 1, 9, 1), [-1], {}),
]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move[0])
def test_complex_numbers_move(move: Any) -> None:
    name, shape, constants, more = move
    model, y, _ = transformed((2, 1, 16), (1, 16))
    moved = model.tensor(shape, "complex64")
    model.op(name, [y, *(model.constant(c, "int32") for c in constants)], [moved], **more)
    for kind in ("REAL", "IMAG", "COMPLEX_ABS"):
        real(model, kind, moved, shape)
    agree(model, [drawn(np.random.default_rng(0), (2, 1, 16), "float32")])


def refusal(model: Model) -> str:
    with pytest.raises(ImporterError) as caught:
        from_tflite(model.build())
    return str(caught.value)


def test_complex_outputs_are_refused() -> None:
    model, y, _ = transformed((1, 8), (1, 8))
    model.outputs = [y]
    assert (
        refusal(model)
        == """the output 't1' is of complex numbers, which is not supported
  in:  the model
  try: a model that gives its real and its imaginary part"""
    )


def test_other_operators_refuse_complex_numbers() -> None:
    model, y, result = transformed((1, 8), (1, 8))
    model.outputs = [model.tensor(result, "complex64")]
    model.op("ADD", [y, y], model.outputs, "AddOptions")
    assert (
        refusal(model)
        == """it is not supported of complex numbers
  in:  the model, operator 't3' (ADD)"""
    )


@pytest.mark.parametrize("name", ["REAL", "IMAG", "COMPLEX_ABS"])
def test_parts_of_real_numbers_are_refused(name: str) -> None:
    model = Model()
    real(model, name, model.input((1, 8)), (1, 8))
    assert (
        refusal(model)
        == f"""its input is real
  in:  the model, operator 't1' ({name})"""
    )


def test_lengths() -> None:
    model, y, result = transformed((1, 8), (1, 12))
    real(model, "REAL", y, result)
    assert (
        refusal(model)
        == """lengths of [1, 12] are not powers of two
  in:  the model, operator 't1' (RFFT2D)"""
    )
    model, y, result = transformed((1, 8), (2, 1))
    real(model, "REAL", y, result)
    assert (
        refusal(model)
        == """a transform of width 1 is not supported
  in:  the model, operator 't1' (RFFT2D)"""
    )
    model, y, result = transformed((1, 8), (1, 1 << 30))
    real(model, "REAL", y, result)
    assert (
        refusal(model)
        == """lengths of [1, 1073741824] are too large
  in:  the model, operator 't1' (RFFT2D)"""
    )
