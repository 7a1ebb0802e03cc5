"""ONNX's own backend suite: what it holds, what passes, and what a test asks.

Rewrite the list of what passes, which takes some minutes:

    python -m tests.frontend.onnx_suite
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.numpy_helper import to_array

from mlc_deploy import backend
from mlc_deploy.errors import MlcError
from mlc_deploy.graph import Function, evaluate, optimize

# The names of the tests that pass, one per line, as "group/name".
PASSING = Path(__file__).with_name("onnx_suite.txt")
GROUPS = ("node", "simple", "pytorch-converted", "pytorch-operator")
# How much results of short floats may differ, relatively. onnx's runner has that of bfloat16; a CPU
# that computes in float16 rounds there, too, whatever the reference does.
TWO_LAST_PLACES = {"bfloat16": 2**-6, "float16": 2**-9}


@dataclass(frozen=True, slots=True)
class SuiteTest:
    """One test of a group; data_sets() gives pairs of inputs and the outputs they must have."""

    name: str
    model: ModelProto
    data_sets: Callable[[], list[tuple[list[Any], list[Any]]]]
    rtol: float
    atol: float

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    @property
    def operator(self) -> str:
        """What it tests: its first node's operator, or the operator whose body it shows."""
        name = self.name.removesuffix("_expanded")
        own = cases().get(name) if name != self.name else None
        return str((own or self).model.graph.node[0].op_type)


class Constant(Exception):
    """The outputs do not depend on any input that is left when the model runs."""


@functools.cache
def cases() -> dict[str, SuiteTest]:
    """Every test of the suite by name; making them takes some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [_node_test(case) for case in collect_testcases(None)]
    for group in GROUPS[1:]:
        found += [_model_test(group, case) for case in load_model_tests(kind=group)]
    return {case.name: case for case in found}


def _node_test(case: TestCase) -> SuiteTest:
    assert case.model is not None and case.data_sets is not None
    sets: Any = case.data_sets
    return SuiteTest(f"node/{case.name}", case.model, lambda: list(sets), case.rtol, case.atol)


def _model_test(group: str, case: TestCase) -> SuiteTest:
    folder = Path(str(case.model_dir))

    def read(data: Path, kind: str) -> list[Any]:
        count = len(list(data.glob(f"{kind}_*.pb")))
        return [_tensor(data / f"{kind}_{n}.pb") for n in range(count)]

    def data_sets() -> list[tuple[list[Any], list[Any]]]:
        sets = sorted(folder.glob("test_data_set_*"))
        return [(read(data, "input"), read(data, "output")) for data in sets]

    model = onnx.load(folder / "model.onnx")
    return SuiteTest(f"{group}/{case.name}", model, data_sets, case.rtol, case.atol)


def _tensor(path: Path) -> NDArray[Any]:
    tensor = TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return to_array(tensor)


def _array(value: Any) -> Any:
    """An array, a list of them for a sequence, None for an optional without a value."""
    if value is None or isinstance(value, list):
        return value
    return to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _compare(case: SuiteTest, outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, map(_array, expected), strict=True):
        if theirs is None or isinstance(theirs, list):
            assert (ours is None) == (theirs is None)
            _compare(case, ours or (), theirs or ())
            continue
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        rtol = case.rtol
        rtol = max(rtol, TWO_LAST_PLACES.get(ours.dtype.name, 0))
        if ours.dtype.kind == "V":
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=case.atol)


def _refuse_constant(function: Function) -> None:
    if not function.bindings and not set(function.outputs) & set(function.params):
        raise Constant


def check_evaluated(case: SuiteTest) -> None:
    """Imports the model and evaluates it, before and after the graph passes. Raises AssertionError
    where the answer is not the suite's, MlcError where the model is refused, Constant."""
    names = [i.name for i in case.model.graph.input]
    for inputs, expected in case.data_sets():
        given = dict(zip(names, map(_array, inputs), strict=False))
        function, bound = backend.import_for(case.model, given)
        _refuse_constant(function)
        arrays, _ = backend.given_arrays(case.model, given)
        left = {name: array for name, array in arrays.items() if name not in bound}
        for graph in (function, optimize(function)):
            _compare(case, backend.outputs_of(case.model, evaluate(graph, left)), expected)


def check_compiled(case: SuiteTest, device: str) -> None:
    """The same through `onnx.backend.base`, compiled and run on a device."""
    prepared = backend.prepare(case.model, device)
    try:
        for inputs, expected in case.data_sets():
            outputs = prepared.run([_array(value) for value in inputs])
            assert prepared.compiled is not None
            _refuse_constant(prepared.compiled.reference)
            _compare(case, outputs, expected)
    finally:
        prepared.close()


def outcome(case: SuiteTest, check: Callable[[SuiteTest], None]) -> str:
    """ "ok", or what went wrong, in a line."""
    try:
        check(case)
    except MlcError as error:
        return f"refused: {error.what.splitlines()[-1].strip()}"
    except Constant:
        return "constant"
    except Exception as error:
        return f"failed: {type(error).__name__} {' '.join(str(error).split())[:120]}"
    return "ok"


def spread(names: Iterable[str], count: int) -> list[str]:
    """So many of the names, of as many operators as there are: each operator's first test, then
    each one's second, and so on."""
    seen: Counter[str] = Counter()
    turns = []
    for number, name in enumerate(names):
        operator = cases()[name].operator
        turns.append((seen[operator], number, name))
        seen[operator] += 1
    return [name for _, _, name in sorted(turns)[:count]]


def passing() -> list[str]:
    return PASSING.read_text().split()


def both(case: SuiteTest) -> None:
    check_evaluated(case)
    check_compiled(case, "CPU")


if __name__ == "__main__":
    names = [name for name, case in sorted(cases().items()) if outcome(case, both) == "ok"]
    PASSING.write_text("\n".join(names) + "\n")
