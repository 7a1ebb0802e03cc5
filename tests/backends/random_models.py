"""Random ONNX models as programs: static, or with a dimension that a run decides, with loops,
branches and scans, and with a state that accumulates an input from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from onnx import ModelProto, helper, printer

from tests.differential.random_control import EVERYWHERE
from tests.differential.random_onnx import OPEN, RandomModel, random_models, run
from tests.onnx_models import Array

STATE, NEXT, SUM = "state_in", "state_out", "state_sum"
STEPS = 3  # runs of a model with a state
COMBINED = ("Add", "Max", "Sub")
LARGEST = 1e4


@dataclass(frozen=True)
class Program:
    """A model, the inputs of its runs, and what onnxruntime answers to each. `states`: whether each
    run begins where the one before ended."""

    model: ModelProto
    dims: Mapping[str, str]
    states: Mapping[str, str]
    runs: list[tuple[dict[str, Array], dict[str, Array]]]

    def text(self) -> str:
        shapes = (f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.runs[0][0].items())
        return "\n".join([f"dims {self.dims}", *shapes, printer.to_text(self.model.graph)])


def programs(number: int, count: int) -> list[Program]:
    """Different ones for each number; every second one has an open dimension."""
    cases = [case for is_open in (False, True) for case in _drawn(number, count // 2, is_open)]
    return [program(case, n) for n, case in enumerate(cases)]


def _drawn(number: int, count: int, is_open: bool) -> list[RandomModel]:
    cases: list[RandomModel] = []

    @seed(2 * number + is_open)
    @settings(
        max_examples=count + 1,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(random_models(EVERYWHERE, open_dim=is_open))
    def draw(case: RandomModel) -> None:
        cases.append(case)

    draw()
    return cases[1:]  # the first is the simplest, whatever the seed


def program(case: RandomModel, number: int) -> Program:
    """Every second model that can gets a state."""
    if number % 2 and (made := _with_state(case, COMBINED[number // 2 % len(COMBINED)])):
        return made
    shapes = [info.type.tensor_type.shape for info in case.model.graph.input]
    is_open = any(dim.dim_param for shape in shapes for dim in shape.dim)
    dims = {"n": f"<={OPEN}"} if is_open else {}
    return Program(case.model, dims, {}, [(case.inputs, case.expected), *case.smaller])


def _with_state(case: RandomModel, op: str) -> Program | None:
    """The model where the state's next value, its old one combined with an input, takes the
    input's place. None where no input of floats has a fixed shape."""
    graph = case.model.graph
    fixed = [
        info.name
        for info in graph.input
        if case.inputs[info.name].dtype == np.float32
        and all(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    ]
    if not fixed:
        return None
    name = fixed[0]
    whole = ModelProto()
    whole.CopyFrom(case.model)
    _rename(whole, name, SUM)
    shape = case.inputs[name].shape
    whole.graph.input.append(helper.make_tensor_value_info(STATE, 1, shape))
    whole.graph.output.append(helper.make_tensor_value_info(NEXT, 1, shape))
    whole.graph.node.insert(0, helper.make_node(op, [STATE, name], [SUM], name="accumulate"))
    whole.graph.node.append(helper.make_node("Identity", [SUM], [NEXT], name="keep"))
    state, runs = np.zeros(shape, np.float32), []
    for _ in range(STEPS):
        try:
            answers = run(whole, {**case.inputs, STATE: state})
        except Exception:  # it cannot for other numbers, as the count of a loop
            break
        expected = dict(zip([o.name for o in whole.graph.output], answers, strict=True))
        if not all(a.size and _tame(a) for a in answers):
            break
        state = expected.pop(NEXT)
        runs.append((case.inputs, expected))
    open_ = any(d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim)
    dims = {"n": f"<={OPEN}"} if open_ else {}
    return Program(whole, dims, {STATE: NEXT}, runs) if runs else None


def _rename(model: ModelProto, old: str, new: str) -> None:
    """Lets all nodes, those of bodies too, read another value. Outputs keep their names."""

    def visit(nodes: object) -> None:
        for node in nodes:  # type: ignore[attr-defined]
            node.input[:] = [new if name == old else name for name in node.input]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g.node)

    visit(model.graph.node)


def _tame(array: Array) -> bool:
    return array.dtype == np.bool_ or bool(
        np.isfinite(array).all() and np.abs(array.astype(np.float64)).max() <= LARGEST
    )
