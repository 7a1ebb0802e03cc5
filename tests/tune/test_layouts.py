"""Layouts as part of what is tuned: which plans there are, and which one is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import tune
from mlc_deploy.driver.model_graph import model_graph, optimized_graph
from mlc_deploy.errors import PassError
from mlc_deploy.graph import BlockBuilder, Call, CallFused, Constant, Function
from mlc_deploy.ir import structural_hash
from mlc_deploy.tune.layouts import Model, Plan, plans
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.space import default_candidate
from mlc_deploy.tuned import Database, Layouts, PlanRecord, digest, known_layouts
from mlc_targets import Target

TARGET = Target("aarch64")
CONV: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}


def weights(*shape: int) -> Constant:
    rng = np.random.default_rng(sum(shape))
    return Constant((rng.standard_normal(shape) / 9).astype(np.float32))


def network() -> Function:
    """Layers `first`, `second` (3 x 3, which Winograd's filtering is for) and `third`."""
    b = BlockBuilder("network")
    x = b.param("x", (1, 16, 40, 40))
    y = b.emit("conv2d", x, weights(16, 16, 1, 1), source="first", pads=(0,) * 4, **CONV)
    y = b.emit("relu", y, source="relu")
    y = b.emit("conv2d", y, weights(16, 16, 3, 3), source="second", pads=(1,) * 4, **CONV)
    y = b.emit("conv2d", y, weights(8, 16, 1, 1), source="third", pads=(0,) * 4, **CONV)
    return b.finish([y])


def model(target: Target = TARGET) -> Model:
    return Model(model_graph(network(), target), target)


def how(task: Task) -> tuple[str, str]:
    """The layer that a task computes, and what it computes in."""
    assert task.source is not None and isinstance(task.source.computes, Function)
    for binding in task.source.computes.bindings:
        call = binding.call
        assert isinstance(call, Call)
        if call.op == "winograd_conv2d":
            return binding.source, "winograd"
        if call.op == "conv2d":
            return binding.source, call.attrs.get("out_layout", "NCHW")
    return "", "transform"


class Costs:
    """What a layer costs in a layout: where nothing is said 10 in blocks and 12 plain; each
    transform costs 1."""

    def __init__(self, said: Mapping[tuple[str, str], float]) -> None:
        self.said = said
        self.asked: list[str] = []

    def __call__(self, tasks: Sequence[Task]) -> dict[str, float]:
        self.asked += [task.workload for task in tasks]
        usual = {"transform": 1.0, "NCHW": 12.0}
        return {t.workload: self.said.get(how(t), usual.get(how(t)[1], 10.0)) for t in tasks}


def chosen(said: Mapping[tuple[str, str], float]) -> Layouts:
    costs = Costs(said)
    found = plans(model(), costs)
    assert len(costs.asked) == len(set(costs.asked))  # nothing is measured twice
    assert [c for _, c in found] == sorted(c for _, c in found)
    return found[0][0].layouts


def test_what_there_is() -> None:
    assert model().layers == ("first", "second", "third")
    assert model().layouts == ("NCHW", "NCHW4c")
    own = model().plan({})
    assert [how(t) for t in own.tasks if how(t)[0]] == [
        ("first", "NCHW4c"), ("second", "winograd"), ("third", "NCHW4c")
    ]  # fmt: skip
    assert own.title == "the target's own"
    assert [layer for layer, _ in own.calls] == ["first", "first", "second", "third", ""]


ALL = ("first", "second", "third")


@pytest.mark.parametrize(
    ("said", "layouts"),
    [
        ({}, {}),
        ({("second", "winograd"): 50.0}, dict.fromkeys(ALL, "NCHW4c")),
        ({(layer, "NCHW"): 4.0 for layer in ALL}, dict.fromkeys(ALL, "NCHW")),
        ({("first", "NCHW"): 2.0}, {"first": "NCHW"}),
        # a little cheaper, but then its result is transformed, which costs more
        ({("second", "NCHW"): 8.9}, {}),
        # both have a layer of their own, apart from each other
        (
            {("first", "NCHW"): 2.0, ("second", "winograd"): 50.0},
            {"first": "NCHW", "second": "NCHW4c"},
        ),
    ],
)
def test_the_cheapest_plan_is_taken(
    said: Mapping[tuple[str, str], float], layouts: Layouts
) -> None:
    assert chosen(said) == layouts


def test_kernels_that_cannot_be_measured_are_no_way_out() -> None:
    assert chosen({(layer, "NCHW"): inf for layer in ALL}) == {}
    assert chosen({("second", "winograd"): inf}) == dict.fromkeys(ALL, "NCHW4c")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_further_plan_is_tried_when_it_is_late(most: int) -> None:
    tried: list[Layouts] = []
    said = {("first", "NCHW"): 2.0}
    found = plans(
        model(), Costs(said), lambda plan, _: tried.append(plan.layouts), lambda: len(tried) >= most
    )
    assert tried == [{}, *(dict.fromkeys(ALL, to) for to in ("NCHW", "NCHW4c"))][:most]
    assert len(found) == most


def test_one_plan_is_tried_however_late_it_is() -> None:
    found = plans(model(), Costs({}), late=lambda: True)
    assert [plan.layouts for plan, _ in found] == [{}]


class Vanishing(Model):
    """The target's own plan has no kernel of the layer `third`."""

    def plan(self, layouts: Layouts) -> Plan:
        plan = super().plan(layouts)
        calls = plan.calls if layouts else tuple(c for c in plan.calls if c[0] != "third")
        return replace(plan, calls=calls)


def test_a_layer_may_have_kernels_in_another_plan_alone() -> None:
    graphs = model().graphs
    found = plans(Vanishing(graphs, TARGET), Costs({}))
    assert found[0][0].layouts == {}


def ops(function: Function) -> list[str]:
    calls = [b.call for b in function.bindings]
    inner = [c.function.bindings if isinstance(c, CallFused) else () for c in calls]
    return [b.call.op for bindings in inner for b in bindings if isinstance(b.call, Call)]


def test_a_database_says_what_a_model_is_compiled_in(tmp_path: Path) -> None:
    target = Target("host")
    function = network()
    reference = model_graph(function, target).reference
    layouts = {"first": "NCHW", "second": "NCHW"}
    database = Database(tmp_path / "db")
    plan = PlanRecord(
        digest(reference), "network", str(target), "a board", "seconds", layouts, 1e-3
    )
    database.add_plans([plan])
    database = Database(tmp_path / "db")
    assert known_layouts(database, reference, target) == layouts
    assert known_layouts(database, reference, Target("aarch64")) == {}
    assert known_layouts(database, reference, target, "float16") == {}
    made = mlc.compile(function, target, db=database)
    assert made.program.function.script() == (
        mlc.compile(optimized_as(function, target, layouts), target).program.function.script()
    )
    x = np.random.default_rng(0).standard_normal((1, 16, 40, 40)).astype(np.float32)
    (wanted,) = made.evaluate({"x": x}).values()
    with mlc.connect("local://") as board:
        (found,) = board.load(made).run({"x": x}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def optimized_as(function: Function, target: Target, layouts: Layouts) -> Any:
    return optimized_graph(model_graph(function, target).reference, target, layouts=layouts)


def test_every_layout_computes_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 40, 40)).astype(np.float32)
    (wanted,) = mlc.graph.evaluate(network(), [x]).values()
    for layouts in ({}, dict.fromkeys(ALL, "NCHW"), {"second": "NCHW"}, {"second": "NCHW4c"}):
        (found,) = mlc.graph.evaluate(optimized_as(network(), TARGET, layouts), [x]).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_the_plan_of_lowest_cost_counts_seconds_first() -> None:
    database = Database()

    def plan(objective: Any, layout: str, cost: float) -> PlanRecord:
        return PlanRecord("m", "network", "t", "a board", objective, {"first": layout}, cost)

    database.add_plans([plan("instructions", "NCHW4c", 10.0)])
    assert database.plan("m", "t") == plan("instructions", "NCHW4c", 10.0)
    database.add_plans([plan("seconds", "NCHW", 2.0), plan("seconds", "NCHW4c", 1.0)])
    database.add_plans([plan("seconds", "NCHW", 3.0)])  # on the same board, so it counts alone
    assert database.plan("m", "t") == plan("seconds", "NCHW", 3.0)
    assert database.plan("m", "u") is None
    other = Database()
    other.merge(database)
    assert other.plans == database.plans


def test_a_digest_knows_shapes_and_no_weights() -> None:
    first, again = network(), network()
    assert digest(first) == digest(again) != digest(small())
    assert digest(first) != digest(first, "float16")


@pytest.mark.parametrize(
    "value", [{"first": "NHWC"}, {"first": 4}, "NCHW", {"first": "NCHW0c"}, {3: "NCHW"}]
)
def test_what_is_no_layout_is_refused(value: Any) -> None:
    with pytest.raises(PassError, match=r"config: option 'graph\.layouts' holds"):
        mlc.PassContext(config={"graph.layouts": value})


def test_a_model_is_tuned_with_its_layouts(tmp_path: Path) -> None:
    stages: list[str] = []
    database = tune.tune_graph(
        small(), "host", 4, 2, work_dir=tmp_path, strategy="random",
        callbacks=[lambda state: stages.append(state.stage)],
    )  # fmt: skip
    assert any(stage.startswith("layouts: 1 in NCHW") for stage in stages)
    (plan,) = database.plans
    assert plan.cost > 0 and plan.objective == "seconds"
    made = mlc.compile(small(), "host", db=database)
    assert made.kernels_tuned


def small() -> Function:
    b = BlockBuilder("small")
    x = b.param("x", (1, 32, 8, 8))
    return b.finish(
        [b.emit("conv2d", x, weights(32, 32, 1, 1), source="one", pads=(0,) * 4, **CONV)]
    )


def transposed(other: str, target: Target) -> Task:
    """A kernel that turns a matrix, then multiplies."""
    b = BlockBuilder("transposed")
    shape = (3, 24, 16) if other == "batches" else (24, 16)
    x = b.param("x", shape)
    turned = b.emit("transpose", x, axes=(0, 2, 1) if other == "batches" else (1, 0))
    y = weights(24, 32) if other == "weights" else b.param("y", (*shape[:-1], 32))
    function = b.finish([b.emit("matmul", turned, y)])
    (task,) = Model(model_graph(function, target), target).plan({}).tasks
    return task


@pytest.mark.parametrize("target", ["aarch64", "armv7a", "host", "llvm -mcpu=cortex-a72"])
def test_every_default_schedule_is_a_candidate(target: str) -> None:
    """With a bias that sums begin with, and LLVM's tuning: a trace gives the very same program."""
    to = Target(target if "=" not in target else f"{target} -mtriple=aarch64-linux-gnu")
    b = BlockBuilder("biased")
    x = b.param("x", (1, 16, 40, 40))
    for kernel in (1, 3):
        pads = (kernel // 2,) * 4
        x = b.emit("conv2d", x, weights(16, 16, kernel, kernel), pads=pads, **CONV)
        x = b.emit("relu", b.emit("add", x, weights(16, 1, 1)))
    tasks = Model(model_graph(b.finish([x]), to), to).plan({}).tasks
    turned = [transposed(other, to) for other in ("weights", "data", "batches")]
    for task in [*tasks, *turned]:
        found = default_candidate(task)
        assert found is not None, task.name
        assert found.program == structural_hash(task.default(task.func))
