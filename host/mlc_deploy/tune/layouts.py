"""The layouts of a model's convolutions, which are tuned, too.

A plan is a value of the pass option graph.layouts with its kernels, layout transforms included. The
default kernels of a few plans are measured: the target's own layouts, all convolutions plain, all
in blocks and none by Winograd's filtering. Then each layer moves to a layout where it was cheaper,
together with others or alone, as long as the whole model gets cheaper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from mlc_targets import Target

from ..driver.model_graph import ModelGraph, optimized_graph
from ..graph import Function, lower_graph
from ..graph.layouts import PLAIN
from ..graph.nodes import Binding, Call, CallFused, CallPacked
from ..ops.layout import layout
from ..tuned import Layouts
from .extract import kernel_tasks, merged
from .records import Task

CONVOLUTIONS = ("conv2d", "winograd_conv2d")
CHEAPER = 0.98  # a layout below this share of a layer's cost is tried
MOST_ALONE = 8  # layers that are tried one by one

Costs = Callable[[Sequence[Task]], Mapping[str, float]]  # by workload


@dataclass(frozen=True, eq=False)
class Plan:
    """calls: (layer, workload) of each call of the model that a task computes."""

    layouts: Layouts
    tasks: tuple[Task, ...]
    calls: tuple[tuple[str, str], ...]

    def cost(self, of: Mapping[str, float]) -> float:
        """The cost of one run of the model, by its kernels' costs; inf where one is unknown."""
        return sum(of.get(workload, inf) for _, workload in self.calls)

    def by_layer(self, of: Mapping[str, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for layer, workload in self.calls:
            found[layer] = found.get(layer, 0.0) + of.get(workload, inf)
        return found

    @property
    def title(self) -> str:
        """For people: its layouts, each with the number of its layers."""
        counts = Counter(self.layouts.values())
        return ", ".join(f"{n} in {name}" for name, n in counts.items()) or "the target's own"

    @cached_property
    def same(self) -> Counter[tuple[str, str]]:
        """Equal for plans that compute the same."""
        return Counter(self.calls)


@dataclass(frozen=True, eq=False)
class Model:
    """A model to make plans for."""

    graphs: ModelGraph
    target: Target
    precision: str = "float32"

    def plan(self, layouts: Layouts) -> Plan:
        function = optimized_graph(self.graphs.reference, self.target, self.precision, layouts)
        program = lower_graph(function, self.graphs.module)
        tasks = kernel_tasks(program.kernels, self.target)
        kernels = [b for b in program.bindings if not isinstance(b.call, CallPacked)]
        calls = tuple(
            (binding.source, tasks[call.kernel].workload)
            for binding, call in zip(kernels, program.calls, strict=True)
            if call.kernel in tasks
        )
        counts = Counter(call.kernel for call in program.calls)
        return Plan(dict(layouts), tuple(merged(tasks, counts)), calls)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that convolutions come from."""
        found = _convolutions(self.graphs.optimized)
        return tuple(dict.fromkeys(b.source for b in found if b.source))

    @cached_property
    def layouts(self) -> tuple[str, ...]:
        """The layouts for convolutions: plain, and the blocks that some of them ask for."""
        calls = [b.call for b in _convolutions(self.graphs.optimized)]
        asked = [layout(c.attrs.get("out_layout", PLAIN)) for c in calls if isinstance(c, Call)]
        return tuple(sorted({PLAIN, *(a.text for a in asked)}))


def _convolutions(function: Function) -> Iterator[Binding]:
    for binding in function.bindings:
        inner = (
            binding.call.function.bindings if isinstance(binding.call, CallFused) else (binding,)
        )
        yield from (b for b in inner if isinstance(b.call, Call) and b.call.op in CONVOLUTIONS)


def plans(
    model: Model,
    measured: Costs,
    watch: Callable[[Plan, float], None] = lambda *_: None,
    late: Callable[[], bool] = lambda: False,
) -> list[tuple[Plan, float]]:
    """(plan, cost of its default kernels together), the cheapest first. measured: gives the costs
    of tasks' default kernels. late(): whether to try no plan after the first."""
    costs: dict[str, float] = {}
    found: list[tuple[Plan, float]] = []

    def tried(layouts: Layouts) -> Plan | None:
        if found and late():
            return None
        plan = model.plan(layouts)
        if any(plan.same == other.same for other, _ in found):
            return None
        costs.update(measured([t for t in plan.tasks if t.workload not in costs]))
        found.append((plan, plan.cost(costs)))
        watch(*found[-1])
        return plan

    uniform = [tried({}), *(tried(dict.fromkeys(model.layers, to)) for to in model.layouts)]
    others = [plan for plan in uniform if plan is not None]
    best, least = min(found, key=lambda entry: entry[1])
    cheaper = _cheaper(model.layers, best, others, costs)
    together = tried(_moved(best.layouts, cheaper))
    if len(cheaper) > 1 and (together is None or together.cost(costs) >= least):
        for layer in list(cheaper)[:MOST_ALONE]:
            best, _ = min(found, key=lambda entry: entry[1])
            tried(_moved(best.layouts, {layer: cheaper[layer]}))
    return sorted(found, key=lambda entry: entry[1])


def _cheaper(
    layers: Sequence[str], best: Plan, others: Sequence[Plan], costs: Mapping[str, float]
) -> dict[str, str | None]:
    """The layers of a plan that are cheaper in another one, and their layout there (None: the
    target's own), the largest gains first."""
    before = best.by_layer(costs)
    after = [(plan.layouts, plan.by_layer(costs)) for plan in others]
    gains: dict[str, float] = {}
    to: dict[str, str | None] = {}
    for layer in layers:
        layouts, by_layer = min(after, key=lambda entry: entry[1].get(layer, inf))
        if layer in before and by_layer.get(layer, inf) < CHEAPER * before[layer]:
            gains[layer], to[layer] = before[layer] - by_layer[layer], layouts.get(layer)
    return {layer: to[layer] for layer in sorted(gains, key=lambda name: -gains[name])}


def _moved(layouts: Layouts, to: Mapping[str, str | None]) -> Layouts:
    moved = {**layouts, **to}
    return {layer: layout for layer, layout in moved.items() if layout is not None}
