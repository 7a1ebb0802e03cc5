"""Reading .tflite files: names, variables, sparse weights; and every refusal, word by word."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError, ShapeError
from mlc_deploy.frontend import from_model, from_tflite
from mlc_deploy.frontend.tflite import initial_variables
from mlc_deploy.frontend.tflite.file import Sparsity, densified
from mlc_deploy.graph import evaluate, optimize
from mlc_deploy.graph.moves import transposed_elements
from tests.frontend.test_tflite_mutations import image_model
from tests.tflite_models import Model, by_litert, drawn


def streaming() -> Model:
    """The sum of the last two inputs."""
    model = Model()
    x = model.input((1, 4))
    handle, before = model.variable("last", np.full((1, 4), 3, np.float32))
    y = model.tensor((1, 4))
    model.op("ADD", [x, before], [y], "AddOptions")
    model.op("ASSIGN_VARIABLE", [handle, x], [], "AssignVariableOptions")
    model.outputs = [y]
    return model


def test_a_variable_is_a_state() -> None:
    data = streaming().build()
    function = from_tflite(data)
    assert function.states == (("last", "last.next"),)
    assert [p.name for p in function.params] == ["t0", "last"]
    assert function.output_names == ("t3", "last.next")
    states = initial_variables(data)
    np.testing.assert_array_equal(states["last"], np.full((1, 4), 3))
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    found = evaluate(function, {"t0": x, **states})
    np.testing.assert_array_equal(found["t3"], by_litert(data, [x])[0])
    np.testing.assert_array_equal(found["last.next"], x)


def test_a_compiled_model_computes_what_litert_does() -> None:
    data = image_model()
    x = drawn(np.random.default_rng(0), (1, 8, 8, 3), "int8")
    (expected,) = by_litert(data, [x])
    function = from_tflite(data)
    compiled = mlc.compile(function, "host")
    with mlc.connect("local://") as board:
        (found,) = board.load(compiled).run({function.params[0].name: x}).values()
    np.testing.assert_array_equal(found, expected)


def test_passes_remove_transposes() -> None:
    function = from_tflite(image_model())
    own = 8 * 8 * 3  # of the input, which nothing can remove
    assert transposed_elements(optimize(function)) <= own < transposed_elements(function)


def test_shapes_of_inputs_can_be_others(tmp_path: Path) -> None:
    model = Model()
    x = model.input((1, 4))
    y = model.tensor((1, 4))
    model.op("RELU", [x], [y])
    model.outputs = [y]
    file = tmp_path / "model.tflite"
    file.write_bytes(model.build())
    assert from_model(file, {"t0": [3, 4]}).outputs[0].type.sizes == (3, 4)


def test_a_sparse_tensor() -> None:
    """Rows in segments, each of blocks of one row and two columns."""
    kinds = Sparsity((0, 1, 2), (1,), (3, (np.array([0, 1, 1, 3]), np.array([1, 0, 1])), 2))
    dense = densified(np.arange(1, 7, dtype=np.float32), (3, 4), kinds)
    assert dense.tolist() == [[0, 0, 1, 2], [0, 0, 0, 0], [3, 4, 5, 6]]


# ------------------------------------------------------------------------------------ refusals


def refusal(data: bytes, **more: Any) -> str:
    with pytest.raises(ImporterError) as caught:
        from_tflite(data, **more)
    return str(caught.value)


def test_refusals() -> None:
    model = Model()
    x = model.input((1, 4))
    y = model.tensor((1, 4))
    model.op("CUSTOM Own", [x], [y])
    model.op("WHILE", [x], [y], "WhileOptions")
    model.outputs = [y]
    assert (
        refusal(model.build())
        == """2 operators are not supported:
    CUSTOM Own (once, at operator 't1')
    WHILE (once, at operator 't1'): control flow is not supported
  in:  the model
  try: supply a converter: mlc.compile(..., converters={"CUSTOM Own": convert}), where convert
       takes a TfliteNode and returns node.emit(operator, *node.inputs, ...)"""
    )
    assert (
        refusal(b"no such model")
        == """this is not a .tflite model (bytes 4 to 8 are not TFL3)
  in:  the model
  try: a file that TensorFlow Lite's converter wrote"""
    )
    assert (
        refusal(image_model()[:200])
        == """the .tflite file is damaged or cut off: it names places after its end
  in:  the model
  try: copy or export the file again"""
    )
    with pytest.raises(ShapeError) as caught:
        from_tflite(image_model(), dims={"batch": 2})
    assert (
        str(caught.value)
        == """a .tflite model has no named dimension 'batch'
  in:  the model
  try: --shape INPUT=1,2,3"""
    )
    with pytest.raises(ShapeError) as caught:
        from_tflite(image_model(), shapes={"t0": [3]})
    assert (
        str(caught.value)
        == """the shape 3 of 't0' does not fit [1, 8, 8, 3]
  in:  the model
  try: 4 extents of at least 1"""
    )
    with pytest.raises(ShapeError) as caught:
        from_tflite(image_model(), shapes={"t0": [1, 3, 8, 8]})
    assert (
        str(caught.value)
        == """the shape 1,3,8,8 of 't0' does not fit: 8 channels of data, weights [4, 3, 3, 3]
  in:  the model, operator 't3' (CONV_2D)
  try: the shape that the file has, 1,8,8,3"""
    )


def test_sizes_that_the_file_leaves_open_are_named() -> None:
    """The file has 1 for each."""
    model = Model()
    x = model.input((1, 1, 1, 2), signature=(1, -1, -1, 2))
    w = model.constant(np.ones((1, 1, 3, 2)), "float32")
    y = model.tensor((1, 1, 1, 1))
    model.op("CONV_2D", [x, w], [y], "Conv2DOptions", Padding=1, StrideH=1, StrideW=1)
    model.outputs = [y]
    assert (
        refusal(model.build())
        == """conv2d: the kernel [1, 3] is larger than the data [1, 2, 1, 1]
  in:  the model, operator 't2' (CONV_2D)
  try: --shape, with other sizes for 't0' [1, ?, ?, 2], which is 1,1,1,2 here"""
    )
    assert from_tflite(model.build(), shapes={"t0": [1, 1, 3, 2]})


def test_activations_of_16_bits_are_refused() -> None:
    model = Model()
    x = model.input((1, 4), "int16", scale=0.1)
    y = model.tensor((1, 4), "int16", scale=0.1)
    model.op("LOGISTIC", [x], [y])
    model.outputs = [y]
    assert (
        refusal(model.build())
        == """quantized tensors of 16 bits are not supported
  in:  the model, operator 't1' (LOGISTIC)"""
    )


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    data, real = image_model(), builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "tflite":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert (
        refusal(data)
        == """reading .tflite files needs the package 'tflite'
  in:  the model
  try: pip install 'mlc-deploy[tflite]'"""
    )


def test_a_converter_of_ones_own() -> None:
    model = Model()
    x = model.input((1, 4))
    y = model.tensor((1, 4))
    model.op("CUSTOM Twice", [x], [y])
    model.outputs = [y]
    own = {"CUSTOM Twice": lambda n: n.emit("add", n.input(0), n.input(0))}
    function = from_tflite(model.build(), converters=own)
    (found,) = evaluate(function, {"t0": np.ones((1, 4), np.float32)}).values()
    assert found.tolist() == [[2, 2, 2, 2]]
