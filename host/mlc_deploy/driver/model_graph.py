"""Makes two graphs of a model: the reference, and the one optimized for a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_targets import Target

from ..frontend import Converter, from_model
from ..frontend.values import with_values
from ..graph import Function, graph_function, optimize
from ..graph.attention import recognize_attention
from ..graph.bind import static
from ..graph.channels import fill_channels
from ..graph.dims import tensor_type
from ..graph.exact import exact_floats
from ..graph.fuse import fuse_operators
from ..graph.layouts import choose_plans
from ..graph.passes import PASSES, Pass, canonicalize_quantized, fold_constants
from ..graph.precision import in_precision, known_precision
from ..graph.ranges import in_ranges, parted
from ..graph.shapeless import Shapeless
from ..graph.signs import unsigned_data
from ..graph.specialize import resolve_calls, specialize
from ..graph.states import stateful
from ..graph.tabulate import rows_of_lookups
from ..graph.verify import verify
from ..graph.views import concatenate_in_place
from ..graph.wide import split_concatenations
from ..ir import IRModule, PrimFunc
from ..passes.context import option, options

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

Watch = Callable[[str, Function, bool], None]

# Passes that must run before one that approximates floats: otherwise numbers that are quantized
# later would be a step off. The other passes may run in any order.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "choose_plans": ("canonicalize_quantized",),
    "fast_math": ("canonicalize_quantized", "tabulate"),
}


@dataclass(frozen=True)
class ModelGraph:
    """`reference` computes the expected outputs; `optimized` becomes the program. `module` holds
    the PrimFuncs that both call."""

    reference: Function
    optimized: Function
    module: IRModule | None


def graph_steps(target: Target, precision: str = "float32") -> tuple[Pass | str, ...]:
    """The passes for a target in order, and the names of the phases between them."""
    return (
        "imported",
        *PASSES,
        *in_precision(precision),
        recognize_attention(target),
        exact_floats(target),
        fill_channels(target),
        unsigned_data(target),
        choose_plans(target),
        rows_of_lookups(target),
        fold_constants,
        concatenate_in_place,
        split_concatenations,
        fuse_operators,
        "optimized",
    )


def model_graph(
    model: str | Path | ExportedProgram | GraphModule | Function | IRModule,
    target: Target,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | str] | None = None,
    converters: Mapping[Any, Converter] | None = None,
    watch: Watch | None = None,
    precision: str = "float32",
    layouts: Callable[[Function], Mapping[str, str]] | None = None,
    trust: bool = False,
    states: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> ModelGraph:
    """The graphs of a model, with arguments as `compile` takes them. layouts(reference) gives
    graph.layouts. Raises ImporterError, GraphError and TargetError."""
    known_precision(precision, target)
    module = None
    extents, ranges = parted(dims or {})
    model = _shaped(model, shapes or {})
    if isinstance(model, Function):
        verify(model)
        function = with_values(static(model, shapes, extents), values or {}, model.name)
    elif isinstance(model, IRModule):
        module = resolve_calls(model)
        function = graph_function(module)
        verify(function, module)
        function = with_values(function, values or {}, function.name)
        function, module = specialize(static(function, shapes, extents), module)
    else:
        function = from_model(model, shapes, extents, converters, trust, values)
    function = stateful(function, states)
    reference = optimize(function, (canonicalize_quantized,), watch)
    chosen = layouts(reference) if layouts else None
    several = in_ranges(reference, ranges)
    optimized = optimized_graph(several, target, precision, chosen, watch)
    return ModelGraph(reference, optimized, module)


def _shaped(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """The model; one whose parameters have no shape, read for `shapes`. Raises GraphError."""
    match model:
        case Shapeless():
            dtypes = {name: dtype or "float32" for name, (dtype, _) in model.unknown.items()}
            known = {n: tensor_type(shapes[n], d) for n, d in dtypes.items() if n in shapes}
            return model.of(known)
        case IRModule() if isinstance(main := model.functions.get("main"), Shapeless):
            own = {k: f for k, f in model.functions.items() if isinstance(f, PrimFunc)}
            return IRModule({**own, "main": _shaped(main, shapes)})
    return model


def optimized_graph(
    reference: Function,
    target: Target,
    precision: str = "float32",
    layouts: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Function:
    """The optimized graph of a reference. layouts are graph.layouts, under those of the
    PassContext, which win."""
    with options({"graph.layouts": {**(layouts or {}), **option("graph.layouts")}}):
        return optimize(reference, graph_steps(target, precision), watch)
