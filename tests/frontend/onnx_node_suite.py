"""ONNX's own backend suite of one-node models, run through our front end and evaluator."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.numpy_helper import to_array

from mlc_deploy.errors import MlcError
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import evaluate, optimize

# The names of the tests that pass, one per line.
PASSING = Path(__file__).with_name("onnx_node_suite.txt")

# Inputs whose values decide shapes, axes or permutations, by operator: what is known when the model
# is compiled.
SHAPE_INPUTS = {
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Unsqueeze": (1,),
}


@functools.cache
def cases() -> dict[str, TestCase]:
    """Every test of the suite by name; making them takes some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def shape_inputs(model: ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    names: set[str] = set()
    for node in model.graph.node:
        for number in SHAPE_INPUTS.get(node.op_type, ()):
            names.update(node.input[number : number + 1])
    return {name: array for name, array in inputs.items() if name in names}


def _array(value: Any) -> Any:
    return to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def run(case: TestCase) -> None:
    """Raises AssertionError where our answer is not the suite's, MlcError where we refuse it."""
    assert case.model is not None and case.data_sets is not None
    for inputs, expected in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        given = dict(zip(names, map(_array, inputs), strict=False))
        known = shape_inputs(case.model, given)
        function = from_onnx(case.model, values=known)
        left = {name: array for name, array in given.items() if name not in known}
        for graph in (function, optimize(function)):
            outputs = list(evaluate(graph, left).values())
            assert len(outputs) == len(expected)
            for ours, theirs in zip(outputs, expected, strict=True):
                theirs = _array(theirs)
                assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
                np.testing.assert_allclose(ours, theirs, rtol=case.rtol, atol=case.atol)


def outcome(case: TestCase) -> str:
    """ "ok", or what went wrong."""
    try:
        run(case)
    except MlcError as error:
        return f"refused: {error.what.splitlines()[-1].strip()}"
    except Exception as error:  # the list of what fails says how
        return f"FAILED {type(error).__name__}: {str(error)[:300]}"
    return "ok"


if __name__ == "__main__":  # rewrites the list: python -m tests.frontend.onnx_node_suite
    PASSING.write_text(
        "\n".join(n for n, c in sorted(cases().items()) if outcome(c) == "ok") + "\n"
    )
